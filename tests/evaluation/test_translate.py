# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Translation of lists, and the two scripts on top of it, with a tiny untrained model."""

import copy
import itertools
import json
import logging
import math
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tiny import csan, recurrent
from transformers.utils import logging as transformers_logging

import csan_hf_cli
from csan_hf import EnsembleForConditionalGeneration
from csan_hf.data import TokenizerPair, train_tokenizer
from csan_hf.evaluation import translate, translate_stream
from csan_hf.evaluation.loading import load_translation_model
from csan_hf.pipelines import TextTranslationPipeline
from csan_hf.pipelines.tokenizer_vocabulary import TokenizerVocabulary
from csan_hf.pipelines.torch_engine import TorchEngine
from csan_hf.training.arguments import TranslationTrainingArguments
from csan_hf_runtime.pool import EnginePool
from csan_hf_runtime.texts import Translation, first_of_each_text, warn_once
from csan_hf_runtime.translator import TextTranslator

ROOT = Path(__file__).parents[2]
TAGS = re.compile("</?p>")
SENTENCES = [
    "two",
    "one hundred and twenty-seven thousand",
    "",
    "the third of May",
    "   ",
    "nine",
    "a much longer sentence with nineteen hundred and eighty-four words in it",
    "two",
]


@pytest.fixture(scope="module")
def tokenizers():
    tokenizer = train_tokenizer([*SENTENCES, "zwei", "eins"] * 3, 300)
    return TokenizerPair(tokenizer, tokenizer)


@pytest.fixture(scope="module")
def model(tokenizers):
    model = csan(vocab_size=len(tokenizers.source), local_window=5, head_area=3)
    model.generation_config.max_length = 12
    return model


@pytest.fixture(scope="module")
def folder(model, tokenizers, tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    model.save_pretrained(path)
    tokenizers.save_pretrained(path)
    return path


@pytest.fixture
def words(folder, tmp_path):
    """Options that translate a file of the sentences."""
    (tmp_path / "in").write_text("\n".join(SENTENCES))
    return f"--model {folder} --input {tmp_path}/in --quiet"


@pytest.mark.parametrize("max_batch_tokens", [1, 30, 4096])
def test_order_is_kept_and_blank_lines_stay_blank(model, tokenizers, max_batch_tokens):
    together = translate(model, tokenizers, SENTENCES, max_batch_tokens=max_batch_tokens)
    alone = [translate(model, tokenizers, [text])[0] for text in SENTENCES]
    assert together == alone
    assert translate(model, tokenizers, []) == []
    assert len(set(alone)) > 3, "the test wants different translations"


@pytest.mark.parametrize("options", [{}, {"truncation": True}])
def test_translate_and_the_pipeline_are_one(model, tokenizers, monkeypatch, options):
    """One length where none is set, one way with what is longer than the model takes."""
    pipe = TextTranslationPipeline(model=model, tokenizer=tokenizers.source, device="cpu")
    monkeypatch.setattr(model.generation_config, "max_length", None)
    monkeypatch.setattr(pipe.model.config, "max_position_embeddings", 40)
    text = " ".join(f"{sentence.capitalize()}." for sentence in SENTENCES if sentence.strip())
    assert len(tokenizers.source(text)["input_ids"]) > 40
    expected = [result["translation_text"].strip() for result in pipe([text, "two"], **options)]
    assert translate(model, tokenizers, [text, "two"], **options) == expected


def test_a_translation_that_is_cut_is_said(model, tokenizers, caplog):
    translate(model, tokenizers, SENTENCES, max_length=3)
    assert "is cut there" not in caplog.text, "as asked for"
    warn_once.cache_clear()  # it may have been said in another test
    translate(model, tokenizers, SENTENCES)
    assert (
        "had not ended at the 12 tokens of the model's generation config and is cut there"
        in caplog.text
    )


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
    logger = logging.getLogger("csan_hf.evaluation.loading")
    type(logger).warning_once.cache_clear()  # it may have been said in another test
    load_translation_model(str(folder), device="cpu", dtype=dtype)
    TranslationTrainingArguments("unused", bf16=dtype == "bfloat16", use_cpu=True)
    said = caplog.text.count("bfloat16 will be slower than float32")
    assert said == (dtype == "bfloat16" and not has_it)


def translate_main(words, *more):
    return csan_hf_cli.main(["translate", *words.split(), *more])


def evaluate_main(words, *more):
    return csan_hf_cli.main(["evaluate", *words.split(), *more])


@pytest.mark.parametrize("device", ["cuda", "cuda:9", "xpu", "meta", "abacus"])
def test_a_device_that_is_not_there_is_said_before_a_model_is_loaded(device, tmp_path):
    with pytest.raises(
        ValueError, match=rf"device '{device}' cannot be used here: .*\. Leave it out, or use 'cpu'"
    ) as error:
        load_translation_model(str(tmp_path / "no-model"), device=device)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "words",
    [
        "translate --model {model} --input {text} --output {text}",
        "translate --model {model} --input {model}/config.json --output {text} --prefixes {text}",
        "evaluate --model {model} --source {text} --reference {model}/config.json --output_dir {folder}",
        "align {model} --source {text} --output {folder}/out --translations {folder}/out",
        "align {model} --source {text} --output {folder}/out --heat_map {folder}/./out",
        "translate --model {model} --input {text} --output {folder}/text.hypotheses",
    ],
)
def test_what_is_read_is_not_written_over(words, folder, tmp_path, capsys):
    text = tmp_path / "text.hypotheses.txt"
    if words.endswith("text.hypotheses"):
        text = tmp_path / "text.hypotheses.partial"  # of a run that was killed
    shutil.copy(folder / "config.json", text)
    words = words.format(model=folder, text=text, folder=tmp_path)
    assert csan_hf_cli.main(words.split()) == 2
    assert re.search("choose (another file|two files)", capsys.readouterr().err)
    assert text.read_text() == (folder / "config.json").read_text()


def test_a_stream_is_translated_window_by_window(model, tokenizers, monkeypatch):
    monkeypatch.setattr("csan_hf_runtime.windows.WINDOW_LINES", 3)
    read = []

    def lines():
        for number in itertools.count():
            read.append(number)
            yield SENTENCES[number % len(SENTENCES)]

    windows = translate_stream(model, tokenizers, lines())
    texts = [several[0].text for several in next(windows) + next(windows)]
    assert texts == translate(model, tokenizers, SENTENCES[:6])
    assert len(read) == 6, "no more is read than is being translated"
    monkeypatch.setattr("csan_hf_runtime.windows.WINDOW_CHARACTERS", 9)
    texts = ["two", "nine", "two", "two", "the third of May", ""]
    assert [len(window) for window in translate_stream(model, tokenizers, texts)] == [3, 2, 1]
    texts = ["two", None, None, "nine"]
    assert [len(window) for window in translate_stream(model, tokenizers, texts)] == [1, 0, 1]
    assert list(translate_stream(model, tokenizers, [])) == []


def test_a_pool_of_processes_writes_the_same_lines(words, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("csan_hf_runtime.windows.WINDOW_LINES", 3)  # so that one window is ahead
    (tmp_path / "prefixes").write_text("eins\n" * len(SENTENCES))
    words += " --max_length 9 --max_batch_tokens 16 --num_beams 2"
    words += f" --prefixes {tmp_path}/prefixes"
    assert translate_main(words) == 0
    expected = capsys.readouterr().out
    monkeypatch.setattr(TorchEngine, "search", None)  # of this process
    assert translate_main(words, "--processes=2") == 0
    assert capsys.readouterr().out == expected
    assert translate_main(words, "--processes=2", "--sample") == 2
    assert "leave out --processes" in capsys.readouterr().err


@pytest.fixture
def forked_pools(monkeypatch):
    """Pools whose processes are forks of one that has imported everything: spawned, each of them
    imports it for seconds.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["csan_hf.commands.translate"])
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: context)


def test_n_best_lists_are_those_of_generate(model, tokenizers):
    options = {"num_beams": 4, "length_penalty": 0.0, "max_length": 9}
    options["return_scores"] = True
    [window] = translate_stream(model, tokenizers, SENTENCES, n_best=3, **options)
    del options["return_scores"]
    assert [len(several) for several in window] == [3 if text.strip() else 1 for text in SENTENCES]
    for text, several in zip(SENTENCES, window, strict=True):
        if not text.strip():
            assert [one.text for one in several] == [""]
            continue
        inputs = tokenizers.source(text, return_tensors="pt")
        found = model.generate(
            **inputs,
            num_return_sequences=3,
            output_scores=True,
            return_dict_in_generate=True,
            **options,
        )
        texts = tokenizers.target.batch_decode(found.sequences, skip_special_tokens=True)
        assert [each.text for each in several] == [text.strip() for text in texts]
        scores = (
            found.sequences_scores.tolist()
        )  # without a length penalty: sums of log-probabilities
        assert [each.log_probability for each in several] == pytest.approx(scores, rel=1e-4)


def test_hypotheses_of_one_text_are_one():
    hypotheses = [Translation("a", -1.0), Translation("b", -2.0), Translation("a", -3.0)]
    assert first_of_each_text(hypotheses) == hypotheses[:2]


def test_samples_are_all_there(model, tokenizers):
    options = {"max_new_tokens": 1, "sample": True, "temperature": 0.01, "n_best": 5}
    [[samples]] = translate_stream(model, tokenizers, ["two"], **options)
    assert len(samples) == 5
    assert len({sample.text for sample in samples}) < 5


def test_n_best_lines(words, model, tokenizers, capsys, monkeypatch):
    monkeypatch.setattr("csan_hf_runtime.windows.WINDOW_LINES", 3)
    words += " --n_best 2"
    options = {"n_best": 2, "num_beams": 2, "return_scores": True}
    windows = translate_stream(model, tokenizers, SENTENCES, **options)
    expected = list(itertools.chain.from_iterable(windows))
    assert translate_main(words) == 0
    lines = []
    for number, hypotheses in enumerate(expected, 1):
        lines += [f"{number}\t{each.log_probability:.4f}\t{each.text}" for each in hypotheses]
    assert capsys.readouterr().out.splitlines() == lines
    assert translate_main(words, "--json_lines") == 0
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [entry["line"] for entry in entries] == list(range(1, len(SENTENCES) + 1))
    for entry, hypotheses in zip(entries, expected, strict=True):
        for result, hypothesis in zip(entry["translations"], hypotheses, strict=True):
            assert result["text"] == hypothesis.text
            total = pytest.approx(hypothesis.log_probability, rel=1e-4)
            assert result["log_probability"] == total
            parts = result["words"]
            assert " ".join(part["word"] for part in parts).split() == hypothesis.text.split()
            tokens = [token["log_probability"] for part in parts for token in part["tokens"]]
            assert sum(tokens) == pytest.approx(sum(part["log_probability"] for part in parts))
            assert sum(tokens) >= hypothesis.log_probability - 1e-4  # the rest is the end's
    assert translate_main(words, "--num_beams=1") == 2
    assert "n_best=2 needs as many beams, got num_beams=1" in capsys.readouterr().err


@pytest.mark.usefixtures("forked_pools")
def test_alignments_stand_beside_the_translations(words, folder, tmp_path, capsys):
    assert csan_hf_cli.main(f"align {folder} --source {tmp_path}/in --quiet".split()) == 0
    expected = capsys.readouterr().out
    words += " --alignments"
    assert translate_main(f"{words} {tmp_path}/links --processes=2") == 0
    assert (tmp_path / "links").read_text() == expected
    capsys.readouterr()
    assert translate_main(f"{words} - --json_lines") == 0
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    links = [entry["translations"][0]["alignment"] for entry in entries]
    assert [" ".join(f"{s}-{t}" for s, t in pairs) for pairs in links] == expected.splitlines()
    (tmp_path / "in").write_text("\n".join(f"<p>{text}</p>" for text in SENTENCES))
    assert translate_main(f"{words} {tmp_path}/links --markup html --processes=2") == 0
    lines = capsys.readouterr().out.splitlines()
    texts = [entry["translations"][0]["text"] for entry in entries]
    assert [TAGS.sub("", line).strip() for line in lines] == texts
    assert all(TAGS.findall(line) == ["<p>", "</p>"] for line in lines), "blank ones, too"
    assert (tmp_path / "links").read_text() == expected
    assert translate_main(f"{words} -") == 2
    assert "name a file, or add --json_lines" in capsys.readouterr().err
    assert translate_main(f"{words} {tmp_path}/out --output {tmp_path}/out") == 2
    assert "choose two files" in capsys.readouterr().err


@pytest.mark.usefixtures("forked_pools")
def test_terms_stand_in_the_translations(words, tmp_path, capsys):
    (tmp_path / "terms").write_text("two\tzwei\nmuch longer\teins\n")
    assert translate_main(words) == 0
    free = capsys.readouterr().out.splitlines()
    for options in ("--num_beams=1", "--processes=2"):
        assert translate_main(words, f"--terms={tmp_path}/terms", options) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [number for number, line in enumerate(lines) if "zwei" in line] == [0, 7]
        assert [number for number, line in enumerate(lines) if "eins" in line] == [6]
        assert lines[1:6] == free[1:6]
    for option in ("--sample", f"--prefixes={tmp_path}/in"):
        assert translate_main(words, f"--terms={tmp_path}/terms", option) == 2
        assert "leave out samples and prefixes" in capsys.readouterr().err


def test_samples_are_those_of_their_seed(words, capsys):
    lines = []
    for seed in (1, 1, 2):
        assert translate_main(words, "--sample", "--temperature=3", f"--seed={seed}") == 0
        lines.append(capsys.readouterr().out)
    assert lines[0] == lines[1] != lines[2]


def test_translations_begin_with_prefixes(words, tmp_path, capsys):
    text = "A sentence. " * 40  # more than the model's positions: translated in parts
    (tmp_path / "in").write_text(f"two\n\nnine\n{text}")
    words += " --max_length 9 --num_beams 3"
    prefixes = f"--prefixes={tmp_path}/prefixes"
    assert translate_main(words) == 0
    free = capsys.readouterr().out.splitlines()
    (tmp_path / "prefixes").write_text("two words\neins\n\neins")
    assert translate_main(words, prefixes) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("two words")
    assert lines[1:3] == free[1:3]
    assert lines[3].startswith("eins")
    assert (lines[3].count("eins"), free[3].count("eins")) == (1, 0)
    for count in (1, 9):
        (tmp_path / "prefixes").write_text("zwei\n" * count)
        assert translate_main(words, prefixes) == 2
        assert "has no partner" in capsys.readouterr().err


def test_a_prefix_may_end_within_a_word(folder, tmp_path, capsys):
    """As a word whose tokens the model chooses: any that begin so, or begin one that does."""
    tokenizer = train_tokenizer(["zwei eins", "zwei einen", "zwei drei"] * 9, 300)
    prefix = TokenizerVocabulary(tokenizer, is_target=True).prefix_of("zwei ei")
    *first_word, space, _ = tokenizer("zwei ")["input_ids"]
    assert prefix.tokens == first_word
    allowed = {*tokenizer.convert_ids_to_tokens(prefix.allowed(first_word))}
    assert allowed == {"Ġ", "Ġe", "Ġei", "Ġein", "Ġeins", "Ġeinen"} & {*tokenizer.get_vocab()}
    assert {"Ġ", "Ġein", "Ġeins"} <= allowed
    after_space = {*tokenizer.convert_ids_to_tokens(prefix.allowed([*first_word, space]))}
    assert {"e", "ei", "ein"} & {*tokenizer.get_vocab()} == after_space & {"e", "ei", "ein"}
    assert "d" not in after_space
    whole_word = tokenizer("zwei eins")["input_ids"][:-1]
    assert prefix.allowed(whole_word) == []
    (tmp_path / "in").write_text("one\ntwo")
    (tmp_path / "prefixes").write_text("zwei dre\nzwei ei")
    words = f"--model {folder} --input {tmp_path}/in --quiet --max_length 9 --num_beams 3"
    assert translate_main(words, f"--prefixes={tmp_path}/prefixes") == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("zwei dre")
    assert second.startswith("zwei ei")


def test_a_prefix_of_symbols_is_whole_and_its_unknown_letters_are_named(caplog):
    pair = TokenizerPair(*[train_tokenizer(["a b ab"] * 9, 9, kind="symbols")] * 2)
    model = csan(vocab_size=len(pair.source))
    texts = translate(model, pair, ["a", "b"], prefixes=["a x", "a"], max_length=4)
    assert [text[:1] for text in texts] == ["a", "a"]
    assert "line 1: the target vocabulary does not have 'x'" in caplog.text
    options = {"prefixes": ["a", "x"], "unknown": "error", "lines_before": 7}
    with pytest.raises(ValueError, match="line 9: the target vocabulary does not have 'x'"):
        next(translate_stream(model, pair, ["a", "b"], **options))


@pytest.mark.parametrize(("count", "words"), [(1, "fewer prefixes"), (3, "more prefixes")])
def test_there_are_as_many_prefixes_as_sentences(count, words, model, tokenizers):
    with pytest.raises(ValueError, match=f"There are {words} than sentences"):
        [*translate_stream(model, tokenizers, ["one", "two"], prefixes=["zwei"] * count)]


def test_several_models_are_an_ensemble(words, model, tokenizers, tmp_path, capsys):
    other = csan(seed=1, vocab_size=len(tokenizers.source))
    other.save_pretrained(tmp_path / "other")
    tokenizers.save_pretrained(tmp_path / "other")
    words = words.replace(" --input", f" {tmp_path}/other --max_length 12 --input")
    assert translate_main(words) == 0
    ensemble = EnsembleForConditionalGeneration.of([model, other])
    expected = translate(ensemble, tokenizers, SENTENCES, max_length=12)
    assert capsys.readouterr().out.splitlines() == expected
    words = words.replace("--input", "--source") + f" --reference {tmp_path}/in"
    assert evaluate_main(words) == 2
    assert "pass --output_dir" in capsys.readouterr().err
    assert evaluate_main(f"{words} --output_dir {tmp_path}/out") == 0
    models = json.loads((tmp_path / "out" / "scores.json").read_text())["model"]
    assert models[1] == f"{tmp_path}/other"


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
    assert translate_main(words) == status
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


def test_what_is_translated_before_a_damaged_line_is_kept(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("csan_hf_runtime.windows.WINDOW_LINES", 2)
    (tmp_path / "in").write_bytes(b"two\nnine\nnine\n\xff\nlast\n")
    assert translate_main(f"{words} --output {tmp_path}/out") == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: {tmp_path}/in, line 4: not UTF-8")
    assert told.endswith(f"3 translations are in {tmp_path}/out.partial.\n")
    assert told.count("\n") == 1


def test_a_killed_command_leaves_its_lines_in_the_partial_file(folder, tmp_path):
    """Killed while it waits for the second window, so that the first is written."""
    code = (
        "import importlib, sys\n"
        "importlib.import_module('csan_hf_runtime.windows').WINDOW_LINES = 2\n"
        "import csan_hf_cli\n"
        "sys.exit(csan_hf_cli.main(['translate', *sys.argv[1:]]))\n"
    )
    output = tmp_path / "out"
    arguments = ["--model", folder, "--device", "cpu", "--quiet", "--output", output]
    command = [sys.executable, "-c", code, *map(str, arguments)]
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
def test_a_stopped_command_goes_on(folder, tmp_path, monkeypatch, options, share):
    """Behind the last sentence that is whole in both files, wherever these were cut."""
    monkeypatch.setattr("csan_hf_runtime.windows.WINDOW_LINES", 2)
    (tmp_path / "in").write_text("".join(f"{sentence}\n" for sentence in SENTENCES[:6]))
    (tmp_path / "begins").write_text("s\nte\n\ns\nt\n\n")
    if options == "--prefixes":
        options = f"--prefixes {tmp_path}/begins"
    words = f"--model {folder} --input {tmp_path}/in --output {tmp_path}/out --quiet {options}"
    words += f" --alignments {tmp_path}/links"
    assert translate_main(words) == 0
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
    assert translate_main(f"{words} --resume") == 0
    for name, content in whole.items():
        assert rounded((tmp_path / name).read_bytes()) == rounded(content)
    if share > 0.5:
        assert len(translated) < 4
    assert not list(tmp_path.glob("*.partial"))


def test_a_resumed_command_says_where_it_goes_on(words, tmp_path, capsys):
    (tmp_path / "out.partial").write_text("zwei\n\nneu")
    words = words.replace("--quiet", f"--output {tmp_path}/out --resume")
    assert translate_main(words) == 0
    assert f"Going on behind line 2 of {tmp_path}/in." in capsys.readouterr().err
    assert (tmp_path / "out").read_text().startswith("zwei\n\n")


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        ("two\nnine\n", "--alignments {}/links", "links.partial are not both there"),
        ("two\nnine\n", "--n_best 2", "out.partial was not written with --n_best"),
        ("two\n", "", "out.partial has translations of more lines than {}/in"),
    ],
    ids=["alignments", "n-best lists", "another input"],
)
def test_what_others_have_begun_is_not_gone_on_with(
    lines, options, message, folder, tmp_path, capsys
):
    (tmp_path / "in").write_text(lines)
    (tmp_path / "out.partial").write_text("zwei\nneun\n")
    words = f"--model {folder} --input {tmp_path}/in --output {tmp_path}/out --resume"
    assert translate_main(f"{words} {options.format(tmp_path)}") == 2
    assert message.format(tmp_path) in capsys.readouterr().err
    assert translate_main(words.removesuffix(" --resume")) == 2
    assert "out.partial holds what another command has written" in capsys.readouterr().err
    assert (tmp_path / "out.partial").read_text() == "zwei\nneun\n"


@pytest.mark.parametrize("files", ["--output out", "--input in", "--input in --output out.gz"])
def test_only_plain_files_are_gone_on_with(folder, tmp_path, monkeypatch, capsys, files):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").write_text("two\n")
    assert translate_main(f"--model {folder} {files} --resume") == 2
    assert "--resume needs --input FILE and --output FILE" in capsys.readouterr().err


@pytest.mark.usefixtures("forked_pools")
def test_a_dead_worker_is_said_with_what_was_kept(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("csan_hf_runtime.windows.WINDOW_LINES", 2)
    (tmp_path / "in").write_text("two\nnine\ntwo\nnine\ntwo\nnine\n")
    run = EnginePool.run
    calls = itertools.count()

    def run_or_die(self, method, arguments):
        if next(calls) == 2:  # a window is ahead: the first one is written by then
            self.submit(os._exit, 1).exception()
        return run(self, method, arguments)

    monkeypatch.setattr(EnginePool, "run", run_or_die)
    words = f"--model {folder} --input {tmp_path}/in --output {tmp_path}/out"
    assert translate_main(f"{words} --quiet --processes 1") == 2
    told = capsys.readouterr().err
    assert "A process of --processes has died" in told
    assert told.endswith(f" translations are in {tmp_path}/out.partial.\n")
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    "command", ["translate", "align", "evaluate", "evaluate --forced", "report"]
)
def test_weights_that_are_nan_are_one_line(command, model, tokenizers, tmp_path, capsys):
    broken = copy.deepcopy(model)
    torch.nn.init.constant_(next(broken.parameters()), math.nan)
    broken.save_pretrained(tmp_path / "model")
    tokenizers.save_pretrained(tmp_path / "model")
    told = error_of(command, tmp_path / "model", tmp_path, capsys)
    assert " is NaN, so that the model computes nothing" in told
    assert told.count("\n") == 1


def test_weights_that_are_missing_are_named(model, tokenizers, tmp_path):
    broken = copy.deepcopy(model)
    del broken.model.encoder.layers[0].fc1.weight
    broken.save_pretrained(tmp_path)
    tokenizers.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"lacks model.encoder.layers.0.fc1.weight"):
        load_translation_model(str(tmp_path))


def error_of(command, model, folder, capsys):
    """Runs a command that fails on a model and a text of two lines; returns its standard error."""
    capsys.readouterr()  # what saving has printed
    assert run_on(command, model, folder) == 2
    return capsys.readouterr().err


def run_on(command, model, folder):
    text = folder / "text"
    text.write_text("two\nnine\n")
    pairs = f"--source {text} --reference {text}"
    words = {
        "translate": f"translate --model {model} --input {text} --json_lines",
        "translate --alignments": f"translate --model {model} --input {text} --json_lines --alignments -",
        "align": f"align {model} --source {text}",
        "evaluate": f"evaluate --model {model} {pairs} --output_dir {folder}",
        "evaluate --forced": f"evaluate --forced --model {model} {pairs} --output_dir {folder}",
        "report": f"report {model} {pairs} --output {folder}/page.html",
    }
    return csan_hf_cli.main(f"{words[command]} --quiet --device cpu".split())


@pytest.fixture(scope="module")
def graphs(tokenizers, tmp_path_factory):
    pytest.importorskip("onnxruntime")
    from csan_hf.hub.onnx import export_onnx

    model = recurrent(vocab_size=len(tokenizers.source))
    model.generation_config.max_length = 12
    path = tmp_path_factory.mktemp("graphs") / "onnx"
    export_onnx(model, path, tokenizers=tokenizers)
    return path


@pytest.fixture(scope="module")
def saved_ensemble(model, tokenizers, tmp_path_factory):
    path = tmp_path_factory.mktemp("ensemble")
    members = [model, csan(seed=1, vocab_size=len(tokenizers.source))]
    EnsembleForConditionalGeneration.of(members).save_pretrained(path)
    tokenizers.save_pretrained(path)
    return path


@pytest.mark.parametrize(
    ("command", "kind", "message"),
    [
        ("align", "graphs", "has no attention to read alignments from"),
        ("align", "saved_ensemble", "has no attention to read alignments from"),
        ("translate --alignments", "graphs", "export the model again, with --with_alignments"),
        ("translate --alignments", "saved_ensemble", "needs the attention of a single torch model"),
        ("evaluate --forced", "graphs", "holds ONNX graphs, which only translate"),
    ],
)
def test_what_a_model_cannot_give_is_said_before_it_translates(
    command, kind, message, request, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(TorchEngine, "search", None)
    told = error_of(command, request.getfixturevalue(kind), tmp_path, capsys)
    assert message in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("kind", ["graphs", "saved_ensemble"])
def test_a_report_shows_models_without_attention_as_it_does_files(kind, request, tmp_path):
    assert run_on("report", request.getfixturevalue(kind), tmp_path) == 0
    assert (tmp_path / "page.html").is_file()


@pytest.mark.parametrize("options", [[], ["--forced"]])
def test_an_empty_test_set_is_said_before_a_model_is_loaded(options, tmp_path, capsys):
    (tmp_path / "empty").touch()
    empty = tmp_path / "empty"
    words = f"--model {tmp_path}/none --source {empty} --reference {empty}"
    assert evaluate_main(words, *options) == 2
    assert capsys.readouterr().err == (
        f"error: {tmp_path / 'empty'} is empty: there is nothing to score.\n"
    )


@pytest.mark.parametrize(
    ("words", "closed", "message"),
    [
        ("translate --model {0}", "stdin", "standard input is closed"),
        ("align {0} --source {0}/config.json", "stdout", "standard output is closed"),
        ("evaluate --source {0}/text --reference {0}/text --hypotheses -", "stdin", "standard in"),
    ],
)
def test_closed_streams_are_one_line(words, closed, message, folder, capsys, monkeypatch):
    monkeypatch.setattr(sys, closed, None)
    (folder / "text").write_text("two\n")
    assert csan_hf_cli.main(words.format(folder).split()) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_a_file_is_written_where_the_other_streams_are_closed(folder, tmp_path):
    (tmp_path / "in").write_text("two\n")
    python = f"{sys.executable} -m csan_hf translate --model {folder} --device cpu"
    command = f"{python} --input {tmp_path}/in --output {tmp_path}/out <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", command], cwd=ROOT, check=False).returncode == 0
    assert (tmp_path / "out").read_text().count("\n") == 1


def test_evaluate_on_files(words, model, tokenizers, tmp_path, capsys):
    (tmp_path / "news.de").write_text("zwei\n" * len(SENTENCES))
    words = words.replace("--input", "--source") + f" --reference {tmp_path}/news.de"
    assert evaluate_main(f"{words} --output_dir {tmp_path}/out") == 0
    hypotheses = (tmp_path / "out" / "in.hypotheses.txt").read_text().split("\n")[:-1]
    assert hypotheses == translate(model, tokenizers, SENTENCES)
    scores = json.loads((tmp_path / "out" / "scores.json").read_text())["scores"]["in"]
    assert scores["sentences"] == len(SENTENCES)
    assert "nrefs:1" in scores["bleu_signature"]
    assert "BLEU" in capsys.readouterr().out


@pytest.fixture
def translation(tmp_path):
    """Options that score a file of translations."""
    texts = {"source": "ein\nein Hund läuft", "reference": "a\na dog runs"}
    texts |= {"hypotheses": "a\na dog walks", "other": "a\na dog walks"}
    for name, text in texts.items():
        (tmp_path / name).write_text(f"{text}\n")
    words = f"--hypotheses {tmp_path}/hypotheses --source {tmp_path}/source"
    return f"{words} --reference {tmp_path}/reference"


def test_evaluate_on_a_translation(translation, standard_input, tmp_path, capsys):
    assert evaluate_main(f"{translation} --by_length --output_dir {tmp_path}/out") == 0
    printed = capsys.readouterr().out
    assert "| 1 to 1 | 1 | 1.0 | 1.0 |" in printed
    assert "| 3 to 3 | 1 | 3.0 | 3.0 |" in printed
    scores = json.loads((tmp_path / "out" / "scores.json").read_text())["scores"]["source"]
    assert scores["sentences"] == 2
    assert scores["by_length"][0]["chrf"] == 100.0
    standard_input((tmp_path / "hypotheses").read_text())
    words = translation.replace(f"{tmp_path}/hypotheses", "-")
    assert evaluate_main(f"{words} --by_length") == 0
    assert capsys.readouterr().out == printed
    (tmp_path / "hypotheses").write_text("a\n")
    assert evaluate_main(translation) == 2
    assert "hypotheses has 1: line 2" in capsys.readouterr().err


def test_evaluate_on_several_references(translation, tmp_path, capsys):
    words = f"{translation} {tmp_path}/other"
    assert evaluate_main(f"{words} --metrics wer bleu") == 0
    printed = capsys.readouterr().out
    assert "  0.00 " in printed
    assert printed.count("nrefs:2") == 2
    assert evaluate_main(f"{words} --metrics repeated_terms") == 2
    assert "repeated_terms compares with one reference" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("evaluate {pair} --output_dir {text}", "{text}/text.hypotheses.txt: Not a directory\n"),
        ("evaluate {pair} --num_beams 0", 'Parser key "num_beams"'),
        ("evaluate {pair} --metrics comet", "COMET needs the program comet-score"),
        ("evaluate {pair} --bleu_tokenize 31a", "--bleu_tokenize must be one of none, zh, 13a"),
        (
            "translate --model {text}/none --input {text}",
            "There is no folder {text}/none to read the model from.\n",
        ),
        (
            "translate --model owner/none --input {text}",
            "There is no folder owner/none here, and that name cannot be read from the Hub: ",
        ),
    ],
)
def test_commands_say_what_is_wrong(words, message, folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    text = tmp_path / "text"
    text.write_text("x\n")
    pair = f"--model {folder} --quiet --source {text} --reference {text}"
    assert csan_hf_cli.main(words.format(pair=pair, text=text).split()) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: {message.format(text=text)}")
