# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""`csan-hf translate` of ONNX graphs: without torch, by the names of models, in several processes."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import csan_hf_runtime
from csan_hf_runtime.command_line import main

pytest.importorskip("onnxruntime")

ROOT = Path(__file__).parents[3]
TEXTS = ["two", "one hundred and seven", "", "the third of May", "nine", "two"]
COMMAND = "import sys; from csan_hf_runtime.command_line import main; sys.exit(main())"


def refusal(model, source, capsys, *options):
    """The error of a command that fails."""
    words = ["translate", "--model", model, "--input", source, *options]
    assert main([*map(str, words)]) == 2
    return capsys.readouterr().err


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source"
    path.write_text("\n".join(TEXTS))
    return path


def run(words, code=COMMAND, python=(), **variables):
    return subprocess.run(
        [sys.executable, *python, "-c", code, *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("options", [[], ["--processes=2"], ["--sample"]], ids=str)
def test_neither_the_command_nor_its_processes_import_torch(options, graphs, source):
    words = ["translate", "--model", graphs, "--input", source, "--quiet", *options]
    done = run(words, PYTHONPROFILEIMPORTTIME="1")
    assert done.stdout.count("\n") == len(TEXTS)
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert "onnxruntime" in imported
    assert not {"torch", "transformers", "datasets", "babel", "csan_hf"} & imported


def translated(graphs, source, capsys, *options):
    words = ["translate", "--model", graphs, "--input", source, "--quiet", *options]
    assert main([*map(str, words)]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.fixture
def copy(graphs, tmp_path):
    return shutil.copytree(graphs, tmp_path / "copy")


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json"])
@pytest.mark.parametrize("change", ["another", "missing", "added"])
def test_files_of_another_model_are_refused(name, change, copy, source, capsys):
    file = copy / name
    text = file.read_text()
    message = f"error: {file} is missing, or not the one that the graphs"
    if change == "added":
        (copy / "target_tokenizer").mkdir()
        file = copy / "target_tokenizer" / "tokenizer.json"
        message = "tokenizer.json is not of the model that was exported"
    if change == "missing":
        file.unlink()
    else:
        file.write_text(text.replace("0", "3", 1))
    assert message in refusal(copy, source, capsys)


def test_settings_may_be_edited_and_ends_of_lines_be_others(graphs, copy, source, capsys):
    for name in ("config.json", "tokenizer.json"):
        content = (copy / name).read_bytes()
        (copy / name).write_bytes(content.replace(b"\n", b"\r\n"))
    lines = translated(graphs, source, capsys)
    assert translated(copy, source, capsys) == lines
    for name, key, value in (
        ("generation_config.json", "max_length", 4),
        ("tokenizer_config.json", "model_max_length", 5),
    ):
        settings = json.loads((copy / name).read_text())
        (copy / name).write_text(json.dumps({**settings, key: value}))
    edited = translated(copy, source, capsys)
    assert edited != lines


def test_lines_have_their_numbers_in_the_file_whoever_translates_them(graphs, tmp_path, capsys):
    (tmp_path / "in").write_text("two\nnine\ntwo\nдва\n")
    (tmp_path / "out.partial").write_text("zwei\nneun\n")
    words = f"translate --model {graphs} --input {tmp_path}/in --output {tmp_path}/out --resume"
    assert main([*words.split(), "--unknown=error", "--processes=2"]) == 2
    assert "line 4: the source vocabulary does not have 'д'" in capsys.readouterr().err
    assert (tmp_path / "out.partial").read_text() == "zwei\nneun\n"


def test_samples_are_those_of_their_seed(graphs, source, capsys):
    samples = [
        translated(graphs, source, capsys, "--sample", "--n_best=2", f"--seed={seed}")
        for seed in (1, 1, 2)
    ]
    assert samples[0] == samples[1] != samples[2]


def test_models_of_the_package_have_names_where_no_folder_has_them(
    graphs, source, tmp_path, capsys, monkeypatch
):
    (tmp_path / "models").mkdir()
    (tmp_path / "models/numbers").symlink_to(graphs)
    monkeypatch.setattr(csan_hf_runtime, "__file__", str(tmp_path / "__init__.py"))
    monkeypatch.chdir(tmp_path)
    lines = translated(graphs, source, capsys)
    assert translated("numbers", source, capsys) == lines
    (tmp_path / "numbers").mkdir()
    assert "numbers" in refusal("numbers", source, capsys)
    words = "run on the CPU as they were exported"
    for option in ("--device=cuda", "--dtype=bfloat16"):
        assert words in refusal(graphs, source, capsys, option)


@pytest.mark.parametrize(
    ("missing", "words", "told"),
    [
        ("torch", "--model {graphs} {graphs}", "an ensemble needs csan_hf with torch"),
        ("torch", "--model {folder}", "{folder}, which has no ONNX graphs, needs csan_hf with torch"),
        ("torch", "--model {folder}/none", "There is no folder {folder}/none to read the model from."),
        ("onnxruntime", "--model {graphs}", "has ONNX graphs, which need onnxruntime: pip install onnxruntime"),
    ],
)  # fmt: skip
def test_what_needs_a_package_says_so_where_there_is_none(
    missing, words, told, graphs, source, tmp_path
):
    places = {"graphs": graphs, "folder": tmp_path}
    words = f"translate --input {source} {words.format(**places)}".split()
    done = run(words, f"import sys; sys.modules['{missing}'] = None; {COMMAND}")
    assert done.returncode == 2
    assert told.format(**places) in done.stderr
    assert done.stderr.count("\n") == 1


def test_csan_hf_does_without_onnxruntime():
    code = "import sys; sys.modules['onnxruntime'] = None; import csan_hf.evaluation.loading"
    done = run([], code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["train", "recipes"])
def test_commands_of_the_whole_package_say_where_they_are(command, tmp_path):
    package = "csan_hf_runtime"  # as the small distribution has it
    (tmp_path / package).symlink_to(ROOT / package)
    paths = [str(tmp_path), sysconfig.get_path("purelib")]
    done = run([command], python=("-S", "-P"), PYTHONPATH=os.pathsep.join(paths))
    assert done.returncode == 2
    assert done.stderr.endswith("needs csan_hf with torch: pip install . in a checkout\n")
