# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""`csan-hf translate` and `evaluate` on files: options, signals, what is kept and gone on with."""

import copy
import itertools
import json
import math
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from system.translate.conftest import run
from tiny import SENTENCES
from transformers.utils import logging as transformers_logging

from csan_hf.commands.demo import DemoModel
from csan_hf.evaluation import translate, translate_stream
from csan_hf.evaluation.loading import load_translation_model
from csan_hf.pipelines.torch_engine import TorchEngine
from csan_hf.training.arguments import TranslationTrainingArguments
from csan_hf_runtime.pool import EnginePool
from csan_hf_runtime.translator import TextTranslator

ROOT = Path(__file__).parents[3]
TAGS = re.compile("</?p>")


@pytest.mark.parametrize("enabled", [True, False])
def test_bars_of_loading_are_hidden_and_then_as_before(folder, enabled, capfd):
    switch = "enable_progress_bar" if enabled else "disable_progress_bar"
    getattr(transformers_logging, switch)()
    loaded, _ = load_translation_model(str(folder), device="cpu", dtype="bfloat16", progress=False)
    assert (loaded.dtype, loaded.training) == (torch.bfloat16, False)
    assert "Loading" not in capfd.readouterr().err
    assert transformers_logging.is_progress_bar_enabled() == enabled
    load_translation_model(str(folder), device="cpu")
    assert ("Loading" in capfd.readouterr().err) == enabled
    transformers_logging.enable_progress_bar()


@pytest.mark.parametrize("has_it", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bfloat16_in_software_is_said_to_be_slow(dtype, has_it, folder, caplog, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: has_it)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    load_translation_model(str(folder), device="cpu", dtype=dtype)
    TranslationTrainingArguments("unused", bf16=dtype == "bfloat16", use_cpu=True)
    said = caplog.text.count("bfloat16 will be slower than float32")
    assert said == (dtype == "bfloat16" and not has_it)


@pytest.mark.parametrize("device", ["cuda", "cuda:9", "xpu", "meta", "abacus"])
def test_a_device_that_is_not_there_is_said_before_a_model_is_loaded(device):
    message = rf"^device '{device}' cannot be used here: .*\. Leave it out, or use 'cpu'\.$"
    with pytest.raises(ValueError, match=message):
        load_translation_model("no-model", device=device)


@pytest.fixture
def forked_pools(monkeypatch):
    """Pools whose processes are forks of one that has imported everything: spawned, each of them
    imports it for seconds.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["csan_hf.evaluation.loading"])
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: context)


def test_n_best_lines(words, model, tokenizers, capsys, monkeypatch):
    monkeypatch.setattr("csan_hf_runtime.windows.WINDOW_LINES", 3)
    words += " --n_best 2"
    options = {"n_best": 2, "num_beams": 2, "return_scores": True}
    windows = translate_stream(model, tokenizers, SENTENCES, **options)
    expected = list(itertools.chain.from_iterable(windows))
    assert run(words) == 0
    lines = []
    for number, hypotheses in enumerate(expected, 1):
        lines += [
            f"{number}\t{hypothesis.log_probability:.4f}\t{hypothesis.text}"
            for hypothesis in hypotheses
        ]
    assert capsys.readouterr().out.splitlines() == lines
    assert run(f"{words} --json_lines") == 0
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [entry["line"] for entry in entries] == list(range(1, len(SENTENCES) + 1))
    for entry, hypotheses in zip(entries, expected, strict=True):
        for result, hypothesis in zip(entry["translations"], hypotheses, strict=True):
            assert result["text"] == hypothesis.text
            assert result["log_probability"] == pytest.approx(hypothesis.log_probability, rel=1e-4)
            words = result["words"]
            assert [word["word"] for word in words if word["word"]] == hypothesis.text.split()
            for word in words:
                total = sum(token["log_probability"] for token in word["tokens"])
                assert word["log_probability"] == pytest.approx(total)
            without_end = sum(word["log_probability"] for word in words)
            assert without_end >= hypothesis.log_probability - 1e-4


@pytest.mark.usefixtures("forked_pools")
def test_alignments_stand_beside_the_translations(words, folder, tmp_path, capsys):
    assert run(f"align {folder} --source {tmp_path}/in --quiet") == 0
    expected = capsys.readouterr().out
    words += " --alignments"
    assert run(f"{words} - --json_lines") == 0
    results = [json.loads(line)["translations"][0] for line in capsys.readouterr().out.splitlines()]
    links = []
    for result in results:
        links.append(" ".join(f"{s}-{t}" for s, t in result["alignment"]))
    assert links == expected.splitlines()
    (tmp_path / "in").write_text("\n".join(f"<p>{text}</p>" for text in SENTENCES))
    assert run(f"{words} {tmp_path}/links --markup html --processes=2") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [TAGS.sub("", line).strip() for line in lines] == [result["text"] for result in results]
    assert all(TAGS.findall(line) == ["<p>", "</p>"] for line in lines), "blank ones, too"
    assert (tmp_path / "links").read_text() == expected


@pytest.mark.usefixtures("forked_pools")
def test_processes_write_the_same_lines(words, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("csan_hf_runtime.windows.WINDOW_LINES", 3)  # so that one window is ahead
    (tmp_path / "terms").write_text("two\tzwei\nmuch longer\teins\n")
    words += f" --max_batch_tokens 16 --terms {tmp_path}/terms"
    assert run(words) == 0
    lines = capsys.readouterr().out.splitlines()
    for word, numbers in (("zwei", [0, 7]), ("eins", [6])):
        assert [number for number, line in enumerate(lines) if word in line] == numbers
    monkeypatch.setattr(TorchEngine, "search", None)  # of this process
    assert run(f"{words} --processes=2") == 0
    assert capsys.readouterr().out.splitlines() == lines


def test_several_models_are_an_ensemble(
    words, folder, ensemble, saved, tokenizers, tmp_path, capsys
):
    second_folder = saved(ensemble.members[1])
    words = words.replace(" --input", f" {second_folder} --max_length 12 --input")
    assert run(words) == 0
    expected = translate(ensemble, tokenizers, SENTENCES, max_length=12)
    assert capsys.readouterr().out.splitlines() == expected
    words = words.replace("translate", "evaluate").replace("--input", "--source")
    assert run(f"{words} --reference {tmp_path}/in --output_dir {tmp_path}/out") == 0
    assert "BLEU" in capsys.readouterr().out
    assert (tmp_path / "out/in.hypotheses.txt").read_text().splitlines() == expected
    written = json.loads((tmp_path / "out/scores.json").read_text())
    assert written["model"] == [str(folder), str(second_folder)]
    assert written["scores"]["in"]["sentences"] == len(SENTENCES)


# ---- what is kept of a command that is stopped


@pytest.fixture
def default_signals():
    """Python's own handlers: a shell's background job begins with SIGINT ignored, nohup SIGHUP."""
    handlers = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("output", ["file", "standard output"])
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
@pytest.mark.usefixtures("default_signals")
def test_what_is_translated_is_kept(
    words, model, tokenizers, tmp_path, monkeypatch, capsys, output, number, status
):
    monkeypatch.setattr("csan_hf_runtime.windows.WINDOW_LINES", 2)
    nine = tokenizers.source("nine")["input_ids"]

    def press(self, batch, original=TorchEngine.search):
        if nine in [ids[: len(nine)].tolist() for ids in batch.ids]:
            signal.raise_signal(number)
        return original(self, batch)

    monkeypatch.setattr(TorchEngine, "search", press)
    (tmp_path / "out").write_text("old")
    if output == "file":
        words += f" --output {tmp_path}/out"
    assert run(words) == status
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    kept, told = capsys.readouterr()
    where = "written"
    if output == "file":
        kept = (tmp_path / "out.partial").read_text()
        where = f"in {tmp_path}/out.partial"
    assert kept.split("\n") == [*translate(model, tokenizers, SENTENCES[:4]), ""]
    assert told == f"Interrupted. 4 translations are {where}.\n"
    assert (tmp_path / "out").read_text() == "old"


@pytest.mark.usefixtures("default_signals")
def test_translations_without_their_alignments_are_counted(words, tmp_path, monkeypatch, capsys):
    """A signal comes between the two files."""
    monkeypatch.setattr(
        "csan_hf_runtime.command_line.output.pharaoh",
        lambda links: signal.raise_signal(signal.SIGTERM),
    )
    assert run(f"{words} --output {tmp_path}/out --alignments {tmp_path}/links") == 143
    count = (tmp_path / "out.partial").read_text().count("\n")
    told = f"Interrupted. {count} translations are in {tmp_path}/out.partial.\n"
    assert capsys.readouterr().err == told
    assert count == len(SENTENCES)


def test_what_is_translated_before_a_damaged_line_is_kept(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("csan_hf_runtime.windows.WINDOW_LINES", 2)
    (tmp_path / "in").write_bytes(b"two\nnine\nnine\n\xff\nlast\n")
    assert run(f"{words} --output {tmp_path}/out") == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: {tmp_path}/in, line 4: not UTF-8")
    assert told.endswith(f"3 translations are in {tmp_path}/out.partial.\n")
    assert told.count("\n") == 1


def test_a_killed_command_leaves_its_lines_in_the_partial_file(folder, tmp_path):
    """Killed while it waits for the second window, so that the first is written."""
    code = (
        "import importlib, sys\n"
        "importlib.import_module('csan_hf_runtime.windows').WINDOW_LINES = 2\n"
        "import csan_hf_runtime.command_line\n"
        "sys.exit(csan_hf_runtime.command_line.main(['translate', *sys.argv[1:]]))\n"
    )
    words = f"--model {folder} --device cpu --quiet --output {tmp_path}/out"
    command = [sys.executable, "-c", code, *words.split()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT) as process:
        process.stdin.write(b"two\nnine\n")
        process.stdin.flush()
        deadline = time.monotonic() + 120
        partial = tmp_path / "out.partial"
        while not (partial.exists() and partial.read_text().count("\n") == 2):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.kill()
    assert [file.name for file in tmp_path.iterdir()] == ["out.partial"]


def rounded(content):
    """With scores of four decimals: windows, and hence batches, are others behind a stop."""
    return re.sub(rb"-\d+\.\d+", lambda match: b"%.4f" % float(match[0]), content)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("options", ["", "--n_best 2", "--json_lines --n_best 2", "--prefixes"])
def test_a_stopped_command_goes_on(words, tmp_path, monkeypatch, options, share):
    """Behind the last sentence that is whole in both files, wherever these were cut."""
    monkeypatch.setattr("csan_hf_runtime.windows.WINDOW_LINES", 2)
    (tmp_path / "in").write_text("".join(f"{sentence}\n" for sentence in SENTENCES[:6]))
    (tmp_path / "begins").write_text("s\nte\n\ns\nt\n\n")
    if options == "--prefixes":
        options = f"--prefixes {tmp_path}/begins"
    words += f" --output {tmp_path}/out --alignments {tmp_path}/links {options}"
    assert run(words) == 0
    whole = {name: (tmp_path / name).read_bytes() for name in ("out", "links")}
    for name, content in whole.items():
        (tmp_path / f"{name}.partial").write_bytes(content[: round(len(content) * share)])
        (tmp_path / name).unlink()
    translated = []
    begin = TextTranslator.begin

    def begin_and_count(self, texts, **options):
        translated.extend(texts)
        return begin(self, texts, **options)

    monkeypatch.setattr(TextTranslator, "begin", begin_and_count)
    assert run(f"{words} --resume") == 0
    for name, content in whole.items():
        assert rounded((tmp_path / name).read_bytes()) == rounded(content)
    if share > 0.5:
        assert len(translated) < 4
    assert not list(tmp_path.glob("*.partial"))


def test_a_resumed_command_says_where_it_goes_on(words, tmp_path, capsys):
    (tmp_path / "out.partial").write_text("zwei\n\nneu")
    assert run(words.replace("--quiet", f"--output {tmp_path}/out --resume")) == 0
    assert f"Going on behind line 2 of {tmp_path}/in." in capsys.readouterr().err
    assert (tmp_path / "out").read_text().startswith("zwei\n\n")


@pytest.mark.parametrize(
    "options", ["--sample", "--documents --json_lines", "--documents --n_best 2"]
)
def test_a_command_whose_end_cannot_be_found_is_not_resumed(words, tmp_path, capsys, options):
    assert run(f"{words} --output {tmp_path}/out --resume {options}") == 2
    assert "leave it out" in capsys.readouterr().err


@pytest.mark.usefixtures("forked_pools")
def test_a_dead_worker_is_said_with_what_was_kept(words, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("csan_hf_runtime.windows.WINDOW_LINES", 2)
    runs = EnginePool.run
    calls = itertools.count()

    def run_or_die(self, method, arguments):
        if next(calls) == 2:  # a window is ahead: the first one is written by then
            self.submit(os._exit, 1).exception()
        return runs(self, method, arguments)

    monkeypatch.setattr(EnginePool, "run", run_or_die)
    assert run(f"{words} --output {tmp_path}/out --processes 1") == 2
    told = capsys.readouterr().err
    assert "A process of --processes has died" in told
    assert told.endswith(f" translations are in {tmp_path}/out.partial.\n")
    assert told.count("\n") == 1


def test_a_file_is_written_where_the_other_streams_are_closed(words, tmp_path):
    command = f"{sys.executable} -m csan_hf {words} --output {tmp_path}/out <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", command], cwd=ROOT, check=False).returncode == 0
    assert (tmp_path / "out").read_text().count("\n") == len(SENTENCES)


# ---- models that cannot do what is asked for


@pytest.fixture
def run_on(tmp_path, capsys):
    """A function that runs a command on a model and two lines; returns exit code and errors."""
    text = tmp_path / "text"
    text.write_text("two\nnine\n")
    pairs = f"--source {text} --reference {text}"
    commands = {
        "translate": f"translate --input {text} --json_lines --model",
        "translate --alignments": f"translate --input {text} --json_lines --alignments - --model",
        "align": f"align --source {text}",
        "evaluate": f"evaluate {pairs} --output_dir {tmp_path} --model",
        "evaluate --forced": f"evaluate --forced {pairs} --output_dir {tmp_path} --model",
        "report": f"report {pairs} --output {tmp_path}/page.html",
    }

    def run_command(command, model):
        capsys.readouterr()  # what saving has printed
        code = run(f"{commands[command]} {model} --quiet --device cpu")
        return code, capsys.readouterr().err

    return run_command


@pytest.mark.parametrize(
    "command", ["translate", "align", "evaluate", "evaluate --forced", "report"]
)
def test_weights_that_are_nan_are_one_line(command, model, saved, run_on):
    broken = copy.deepcopy(model)
    torch.nn.init.constant_(next(broken.parameters()), math.nan)
    code, told = run_on(command, saved(broken))
    assert code == 2
    assert " is NaN, so that the model computes nothing" in told
    assert told.count("\n") == 1


@pytest.fixture(scope="module")
def saved_ensemble(ensemble, saved):
    return saved(ensemble)


@pytest.mark.parametrize(
    ("command", "kind", "message"),
    [
        ("align", "graphs", "holds ONNX graphs, which only translate"),
        ("align", "saved_ensemble", "take a single torch model"),
        ("translate --alignments", "graphs", "export the model again, with --with_alignments"),
        ("translate --alignments", "saved_ensemble", "take a single torch model"),
        ("evaluate --forced", "graphs", "holds ONNX graphs, which only translate"),
    ],
)
def test_what_a_model_cannot_give_is_said_before_it_translates(
    command, kind, message, request, run_on, monkeypatch
):
    monkeypatch.setattr(TorchEngine, "search", None)
    code, told = run_on(command, request.getfixturevalue(kind))
    assert code == 2
    assert message in told
    assert told.count("\n") == 1


def test_graphs_are_evaluated_as_they_translate(graphs, run_on, tmp_path):
    assert run_on("evaluate", graphs)[0] == 0
    written = (tmp_path / "text.hypotheses.txt").read_text().splitlines()
    translations = TextTranslator.from_directory(graphs).translate(["two", "nine"])
    assert written == [best.text for [best] in translations]


def test_a_demo_of_graphs_translates_and_says_why_it_does_not_align(graphs, caplog):
    translated = DemoModel(str(graphs)).translate("two\nnine", 1)
    [[best]] = TextTranslator.from_directory(graphs).translate(
        ["two\nnine"], num_beams=1, split_sentences="always"
    )
    assert [word for word in translated.target if word != "\n"] == best.text.split()
    assert "Words are not aligned: The alignment of words: attention weights" in caplog.text


@pytest.mark.parametrize("kind", ["graphs", "saved_ensemble"])
def test_a_report_shows_models_without_attention_as_it_does_files(kind, request, run_on, tmp_path):
    assert run_on("report", request.getfixturevalue(kind))[0] == 0
    assert (tmp_path / "page.html").is_file()


# ---- evaluate


@pytest.fixture
def scored(tmp_path):
    """Words that score a file of translations."""
    texts = {"source": "ein\nein Hund läuft", "reference": "a\na dog runs"}
    texts |= {"hypotheses": "a\na dog walks", "other": "a\na dog walks"}
    for name, text in texts.items():
        (tmp_path / name).write_text(f"{text}\n")
    words = f"evaluate --hypotheses {tmp_path}/hypotheses --source {tmp_path}/source"
    return f"{words} --reference {tmp_path}/reference"


def test_evaluate_on_a_translation(scored, standard_input, tmp_path, capsys):
    words = f"{scored} --by_length --output_dir {tmp_path}/out"
    assert run(words) == 0
    printed = capsys.readouterr().out
    assert "| 1 to 1 | 1 | 1.0 | 1.0 |" in printed
    assert "| 3 to 3 | 1 | 3.0 | 3.0 |" in printed
    scores = json.loads((tmp_path / "out/scores.json").read_text())["scores"]["source"]
    assert scores["sentences"] == 2
    assert scores["by_length"][0]["chrf"] == 100.0
    standard_input((tmp_path / "hypotheses").read_text())
    assert run(words.replace(f"{tmp_path}/hypotheses", "-")) == 0
    assert capsys.readouterr().out == printed


def test_evaluate_on_several_references(scored, tmp_path, capsys):
    words = f"{scored} {tmp_path}/other"
    assert run(f"{words} --metrics wer bleu") == 0
    printed = capsys.readouterr().out
    assert "  0.00 " in printed
    assert printed.count("nrefs:2") == 2
    assert run(f"{words} --metrics repeated_terms") == 2
    assert "repeated_terms compares with one reference" in capsys.readouterr().err
