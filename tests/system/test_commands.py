# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""`csan-hf`: its table, its options, how it ends, and what it imports when."""

import errno
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from pipelines.multilingual import nllb
from tqdm import tqdm
from transformers import BartConfig, BartForConditionalGeneration

from csan_hf.commands.train import format_help
from csan_hf.pipelines import translation_pipeline
from csan_hf.recipes import RECIPES, SUITES
from csan_hf_runtime.command_line import (
    COMMANDS,
    build_parser,
    function_of,
    import_csan_hf,
    main,
    run,
    script,
)
from csan_hf_runtime.command_line.output import Done, OutputOptions, write_translations
from csan_hf_runtime.texts import Translation

ROOT = Path(__file__).parents[2]


def test_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    told = capsys.readouterr().out
    assert all(f"  {name} " in told for name in COMMANDS)
    assert main([]) == 2
    assert main(["recipes", "--help"]) == 0
    assert "usage: csan-hf recipes " in capsys.readouterr().out


FROZEN = json.loads((Path(__file__).parents[1] / "frozen" / "options.json").read_text())


@pytest.mark.parametrize("name", [name for name in FROZEN if not name.startswith("train ")])
def test_every_option_that_existed_is_still_there(name):
    """With its default and choices; frozen/options.json is what every command had when it was
    frozen.
    """
    actions = {}
    for action in build_parser(function_of(name))._actions:
        actions |= dict.fromkeys([action.dest, *action.option_strings], action)
    for option, frozen in FROZEN[name].items():
        action = actions[option]
        assert (action.nargs == 0) == (frozen.get("nargs") == 0), option
        if action.option_strings:
            assert action.required == frozen.get("required", False), option
        if name != "report" or option != "--metrics":  # there None means the default metrics
            assert str(action.default) == str(frozen["default"]), option
        if "choices" in frozen:
            assert list(action.choices or action._typehint.__args__) == frozen["choices"], option


@pytest.mark.parametrize("model", ["csan", "pervasive_attention"])
def test_every_key_of_a_recipe_that_existed_is_still_there(model, capsys):
    assert main(["train", "--model", model, "--help", "all"]) == 0
    told = capsys.readouterr().out
    assert [key for key in FROZEN[f"train {model}"] if f"  {key}  (" not in told] == []


@pytest.mark.parametrize(
    ("file", "fields", "told"),
    [
        ("generation_config.json", {"num_beams": 0}, "num_beams must be an integer from 1 to 1000"),
        (
            "generation_config.json",
            {"num_beams": "x"},
            "num_beams must be an integer from 1 to 1000",
        ),
        ("config.json", {"d_model": 64}, "the weights do not fit config.json"),
    ],
)
def test_a_damaged_checkpoint_is_one_line(file, fields, told, tmp_path, capsys):
    shutil.copytree(Path(__file__).parents[1] / "frozen" / "csan", tmp_path / "model")
    config = json.loads((tmp_path / "model" / file).read_text())
    (tmp_path / "model" / file).write_text(json.dumps({**config, **fields}))
    (tmp_path / "text").write_text("one\n")
    words = f"translate --model {tmp_path}/model --input {tmp_path}/text --device cpu"
    assert main(words.split()) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(("source", "target"), [("eng_Latn", "fra_Latn"), ("deu_Latn", "eng_Latn")])
def test_translate_and_evaluate_take_languages_and_lengths(source, target, tmp_path, capsys):
    """With a tiny NLLB checkpoint, whose translations depend on the languages."""
    text, model = tmp_path / "text", tmp_path / "model"
    for part in nllb(tmp_path):
        part.save_pretrained(model)
    text.write_text("zwei drei German:\ntranslate\n")
    options = f"--model {model} --max_new_tokens 7 --device cpu --source_lang {source} "
    options += f"--target_lang {target}"
    assert main(f"translate {options} --quiet --truncation --input {text}".split()) == 0
    translations = capsys.readouterr().out
    pipeline = translation_pipeline(model, device="cpu", src_lang=source, tgt_lang=target)
    results = pipeline(text.read_text().splitlines(), max_new_tokens=7)
    assert translations.splitlines() == [result["translation_text"].strip() for result in results]
    files = f"--source {text} --reference {text} --output_dir {tmp_path}"
    assert main(f"evaluate {options} {files}".split()) == 0
    assert (tmp_path / "text.hypotheses.txt").read_text() == translations


def test_no_tokenizer_is_made_up(tmp_path, capsys):
    sizes = tiny.transformer_sizes(4, layers=1, heads=1, ffn=1)
    model = BartForConditionalGeneration(BartConfig(vocab_size=9, **sizes))
    model.save_pretrained(tmp_path / "bart")
    assert main(f"convert {tmp_path}/bart {tmp_path}/csan".split()) == 0
    told = capsys.readouterr().err
    assert "bart has no tokenizer, so none is saved (There is no tokenizer in " in told
    assert not [*(tmp_path / "csan").glob("tokenizer*")]


def test_a_function_is_a_command(capsys):
    """Positional-only parameters, options, flags, lists, and fields that nobody names."""

    def command(
        first: str,
        more: list[str],
        /,
        *,
        flag: bool = False,
        names: list[str] | None = None,
        **fields: int,
    ):
        """Do it, 100 %.

        Args:
            first: one
            more: several
            flag: whether
            names: of them
        """
        print(first, more, flag, names, fields)

    assert run(command, ["a", "b", "c", "--size=5", "--layers", "0", "1", "--wrapped"]) == 0
    assert (
        capsys.readouterr().out
        == "a ['b', 'c'] False None {'size': 5, 'layers': [0, 1], 'wrapped': True}\n"
    )

    def command(*, names: list[str]):
        """Do it.

        Args:
            names: of them
        """
        print(names)

    assert run(command, ["--names", "x", "y", "--names", "z"]) == 0
    assert capsys.readouterr().out == "['x', 'y', 'z']\n"
    assert run(lambda arguments: len(arguments), ["--as", "it", "is"]) == 3


def test_recipes_and_suites_are_listed(capsys):
    assert main(["recipes"]) == 0
    told = capsys.readouterr().out
    assert max(map(len, told.splitlines())) < 80
    names = re.findall(r"^  (\S+)(?:\s+\S+){3}", told, re.MULTILINE)
    assert names == [*RECIPES.names(), *SUITES.names()], "every one says what it is"
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("files", "name"), [(RECIPES, "numbers"), (SUITES, "naacl_table1")])
def test_recipes_and_suites_are_copied_into_new_files_only(files, name, tmp_path, capsys):
    expected = files.file(name).read_text()
    for output in ([], ["--output", "-"]):
        assert main(["recipes", name, *output]) == 0
        assert capsys.readouterr().out == expected
    copy = tmp_path / "new" / "mine.yaml"
    command = ["recipes", name, "--output", str(copy)]
    assert main(command) == 0
    is_warned = "dataset_name" in capsys.readouterr().out  # which a card would go on saying
    assert is_warned == (files is RECIPES)
    assert copy.read_text() == expected
    assert main(command) == 2
    assert "File exists" in capsys.readouterr().err


# ---- how commands and scripts end


class TroubleError(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file", "x.txt"), 2, "error: x.txt: No"),
        (IsADirectoryError(errno.EISDIR, "Is a directory", b"x"), 2, "error: x: Is a directory"),
        (ValueError("num_beams must be,\n  got 0"), 2, "error: num_beams must be, got 0"),
        (ValueError("no \x1b]0;x\x07 \u202ey"), 2, r"error: no \x1b]0;x\x07 \u202ey"),
        (ImportError("pip install it"), 2, "error: pip install it"),
        (TroubleError("no"), 7, "error: no"),
        (KeyboardInterrupt(), 130, "Interrupted."),
        (KeyboardInterrupt("3 lines are written."), 130, "Interrupted. 3 lines are written."),
    ],
    ids=repr,
)
def test_an_error_is_one_line(error, status, text, monkeypatch, capsys):
    @script({TroubleError: 7})
    def command(arguments):
        raise error

    assert command([]) == status
    told = capsys.readouterr().err
    assert text in told
    assert told.count("\n") == 1
    monkeypatch.setenv("CSAN_HF_DEBUG", "1")
    command([])
    assert ("Traceback" in capsys.readouterr().err) == isinstance(error, Exception)


def test_of_several_processes_one_says_what_was_given_to_all(monkeypatch, capsys):
    monkeypatch.setenv("LOCAL_RANK", "1")

    @script()
    def command(error):
        raise error

    with pytest.raises(KeyError):  # a mistake of ours is not hidden
        command(KeyError())
    assert command(ValueError("same for all")) == 2
    assert command(OSError("only mine")) == 2
    assert capsys.readouterr().err == "error: only mine\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_reader_that_leaves_and_a_full_device():
    """In a process of its own, whose streams Python flushes once more when it exits."""
    python = f'"{sys.executable}" -c "import csan_hf_runtime.command_line, sys; sys.exit(csan_hf_runtime.command_line.main([\'recipes\']))"'
    shell = f"{python} | true; echo ${{PIPESTATUS[0]}}; {python} >/dev/full; echo $?"
    done = subprocess.run(
        ["bash", "-c", shell], capture_output=True, text=True, check=True, cwd=ROOT
    )
    pipe, full = done.stdout.split()
    assert pipe in ("0", "141")  # 0: it had written before the reader left
    assert full == "2"
    assert done.stderr == "error: [Errno 28] No space left on device\n"


# ---- what is imported when

HEAVY = ("datasets", "evaluate", "gradio", "jsonargparse", "matplotlib", "num2words", "onnx")
HEAVY += ("pandas", "pyarrow", "rapidfuzz", "sacrebleu", "selenium", "sentencex", "tensorboard")
AREAS = {"training", "data", "evaluation", "analysis", "report", "hub", "recipes", "suites"}


def test_importing_the_package_loads_neither_plotting_nor_training_nor_corpora():
    """Only what the Auto classes and models of transformers load by themselves comes with it."""
    code = (
        "import sys, transformers.models.marian.modeling_marian, transformers.pipelines.base\n"
        "before = set(sys.modules)\n"
        "import csan_hf\n"
        "print(*(set(sys.modules) - before))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    loaded = {*done.stdout.split()}
    assert "csan_hf.models.modeling_csan" in loaded
    assert not loaded & {*HEAVY, *(f"csan_hf.{area}" for area in AREAS), "csan_hf.commands"}


@pytest.mark.parametrize(
    "words", ["--help", "recipes", "--version", *(f"{name} --help" for name in COMMANDS)]
)
def test_what_needs_no_model_answers_at_once(words):
    code = "import csan_hf_runtime.command_line as cli, sys; print(cli.main(sys.argv[1:]), 'torch' in sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code, *words.split()],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert done.stderr == "0 False\n"
    assert done.stdout


def test_help_of_a_section_is_kept_until_the_code_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = tmp_path / "csan_hf" / "help.json"
    file.parent.mkdir()
    file.write_text('{"code": "earlier", "training None": "outdated"}')
    code = "import csan_hf_runtime.command_line, sys; csan_hf_runtime.command_line.main(sys.argv[1:]); print('torch' in sys.modules)"
    for topic, is_imported in (("training", True), ("training", False), ("config", False)):
        words = [sys.executable, "-c", code, "train", "--help", topic]
        told = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT).stdout
        assert told == f"{format_help(topic)}\n{is_imported}\n"


@pytest.mark.parametrize(("is_terminal", "line"), [(True, "Loading torch ...\n"), (False, "")])
def test_a_terminal_alone_is_told_that_torch_is_being_loaded(is_terminal, line, monkeypatch):
    screen = io.StringIO()
    screen.isatty = lambda: is_terminal
    monkeypatch.setattr(sys, "stderr", screen)
    import_csan_hf("own_code", "--import")
    assert screen.getvalue() == "", "it is loaded"
    monkeypatch.delitem(sys.modules, "torch")
    import_csan_hf("own_code", "--import")
    assert screen.getvalue() == line


def test_no_line_stands_beside_a_bar(monkeypatch):
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    sentences = [[[Translation("Satz 0")]], [[Translation("Satz 1")]]]
    windows = tqdm(sentences, file=screen, mininterval=0)
    write_translations(windows, OutputOptions(), with_scores=False, done=Done())
    lines = [line.split("\r")[-1].strip() for line in screen.getvalue().split("\n")]
    assert lines[:2] == ["Satz 0", "Satz 1"]


@pytest.mark.parametrize(("policy", "expected"), [(None, "1000"), ("passive", None)])
def test_threads_that_wait_do_not_spin_for_long(policy, expected, monkeypatch, capsys):
    for name, value in (("GOMP_SPINCOUNT", None), ("OMP_WAIT_POLICY", policy)):
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
    main(["--help"])
    assert os.environ.pop("GOMP_SPINCOUNT", None) == expected
