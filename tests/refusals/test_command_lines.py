# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What commands refuse: one line that says why, exit code 2, and every file as it was."""

import errno
import shlex
import shutil
import sys

import pytest

from csan_hf_runtime.command_line import main, script

TRANSLATE = "translate --model {model} --quiet --input {text} "
SUBTITLES = "translate --model {none} --input {film} "
EVALUATE = "evaluate --model {model} --quiet --source {text} --reference {text} "
SCORE = "evaluate --hypotheses {text} --source {text} --reference {text} "
ALIGN = "align {model} --quiet --source {text} --target {text} "
REPORT = "report {text} --source {text} --reference {text} "
LANGUAGES = "error: The model translates into de, fr: give one of them"


@pytest.fixture
def places(folder, of_two_languages, tmp_path):
    """Names of files and folders that commands are given."""
    for name, content in {
        "text": b"two\nnine\n",
        "short": b"two\n",
        "empty": b"",
        "latin": b"two\n\xe4\n",
        "gold": b"1-1 2-2\n\n",
        "film.srt": b"1\n00:00:01,000 --> 00:00:02,500\ntwo\n",
        "nothing.vtt": b"WEBVTT\n\n00:01.000 --> 00:02.500\n\nNOTE two\n",
        "out.partial": b"zwei\nneun\n",
        "ranked.partial": b"1\t-1.0000\tzwei\n1\t-2.0000\tneun\n",
        "json.partial": b'{"line": 1, "translations": [{"text": "zwei"}]}\n',
        "text.hypotheses.txt": b"two\nnine\n",
    }.items():
        (tmp_path / name).write_bytes(content)
    shutil.copytree(folder, tmp_path / "model")
    places = {path.name.partition(".")[0]: path for path in tmp_path.iterdir()}
    places["text"] = tmp_path / "text"  # not what is made of it
    places |= {name: tmp_path / name for name in ("out", "none")}
    return places | {"here": tmp_path, "languages": of_two_languages}


def files_in(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        # What is read is not written over
        (TRANSLATE + "--output {text}", "choose another file"),
        (TRANSLATE + "--output {short} --prefixes {short}", "choose another file"),
        ("translate --model {model} --input {here}/out.partial --output {here}/out", "choose another"),
        ("evaluate --model {model} --source {text} --reference {text}.hypotheses.txt --output_dir {here}", "choose another"),
        (ALIGN + "--output {here}/x --heat_map {here}/./x", "choose two files"),
        ("align {model} --source {text} --output {none} --translations {none}", "choose two files"),
        (ALIGN + "--heat_map {text}", "text is read, too, and would be overwritten"),
        (TRANSLATE + "--alignments {none} --output {none}", "--output and --alignments are the same file"),
        (TRANSLATE + "--alignments {none}.partial --output {none}", "--output and --alignments are the same file"),
        ("translate --model pronouncer-english two", "pronouncer-english holds ONNX graphs, which only translate"),
        # What another command has begun
        (TRANSLATE + "--output {out}", "out.partial holds what another command has written"),
        (TRANSLATE + "--output {out} --resume --alignments {none}", "none.partial are not both there"),
        (TRANSLATE + "--output {out} --resume --n_best 2", "out.partial was not written with --n_best"),
        (TRANSLATE + "--output {here}/ranked --resume", "ranked.partial was written with --n_best"),
        (TRANSLATE + "--output {here}/json --resume", "json.partial was written with --json_lines"),
        (TRANSLATE + "--output {out} --resume --json_lines", "out.partial was not written with --json_lines"),
        (TRANSLATE + "--sample --seed -1", "--seed must be"),
        ("translate --model {model} --input {short} --output {out} --resume", "has translations of more lines than {short}"),
        ("translate --model {model} --output {out} --resume", "--resume needs --input FILE and --output FILE"),
        (TRANSLATE + "--resume", "--resume needs --input FILE and --output FILE"),
        (TRANSLATE + "--output {none}.gz --resume", "--resume needs --input FILE and --output FILE"),
        # Options that contradict each other
        (TRANSLATE + "--n_best 2 --num_beams 1", "--n_best 2 needs as many beams, got --num_beams 1; or --sample."),
        (TRANSLATE + "--sample --processes 2", "leave out --processes"),
        (TRANSLATE + "--sample --terms {empty}", "leave out samples and prefixes"),
        (TRANSLATE + "--prefixes {text} --terms {empty}", "leave out samples and prefixes"),
        (TRANSLATE + "--alignments -", "name a file, or add --json_lines"),
        (TRANSLATE + "--prefixes {short}", "has no partner"),
        (SUBTITLES + "--n_best 2 --json_lines", "leave out --n_best, --json_lines.\n"),
        (SUBTITLES + "--alignments {none}", "leave out --alignments.\n"),
        (SUBTITLES + "--output {none} --resume", "leave out --resume.\n"),
        (SUBTITLES + "--prefixes {short}", "leave out --prefixes.\n"),
        ("translate --model {none} --input {nothing}", 'nothing.vtt has no line with times, "-->", and text below it'),
        ("evaluate --model {model} {model} --source {text} --reference {text}", "pass --output_dir"),
        (EVALUATE + "--num_beams 0", "error: --num_beams must be an integer from 1 to 1000 or null, got 0"),
        (EVALUATE + "--forced --metrics bleu", "--forced translates nothing: leave out --metrics"),
        (EVALUATE + "--forced --length_penalty 0", "leave out --length_penalty"),
        (EVALUATE + "--forced --truncation", "leave out --truncation"),
        (SCORE + "--num_beams 2", "--hypotheses translates nothing: leave out --num_beams"),
        (SCORE + "--split_sentences auto", "leave out --split_sentences"),
        (SCORE + "--recipe numbers", "leave out --recipe and --split"),
        ("evaluate --hypotheses {text}", "--hypotheses needs --source and --reference"),
        (EVALUATE + "--bleu_tokenize 31a", "error: --bleu_tokenize must be one of none, zh, 13a"),
        (EVALUATE + "--metrics aer", "error: aer scores alignments: csan-hf align --gold FILE prints it.\n"),
        (EVALUATE + "--metrics comet", "error: COMET needs the program comet-score"),
        (EVALUATE + "--output_dir {text}", "error: {text}/text.hypotheses.txt: Not a directory\n"),
        (ALIGN + "--num_beams 2", "leave out --target"),
        (ALIGN + "--translations {none}", "leave out --target"),
        (ALIGN + "--heat_map {none} --sentence 0", "--sentence must be from 1 to 2, the number of pairs, got 0"),
        (ALIGN + "--threshold 1", "threshold must be at least 0 and less than 1, got 1"),
        ("align {model} --source {text} --gold {gold}", "give --target too"),
        # Models and files
        ("translate --model {none} --input {text}", "error: There is no folder {none} to read the model from.\n"),
        ("translate --model owner/none --input {text}", "error: There is no folder owner/none here, and that name cannot be read from the Hub: "),
        ("evaluate --model owner/none --source {text} --reference {text}", "error: owner/none is no folder here, to write to: pass --output_dir.\n"),
        ("evaluate --model {none} --source {empty} --reference {empty}", "error: {empty} is empty: there is nothing to score.\n"),
        ("evaluate --model {none} --source {empty} --reference {empty} --forced", "error: {empty} is empty: there is nothing to score.\n"),
        ("evaluate --hypotheses {short} --source {text} --reference {text}", "short has 1: line 2"),
        ("align {model} --source {text} --target {short}", "short has 1: line 2"),
        ("align {model} --source {none} --target {text}", "none"),
        ("align {model} --source {latin} --target {text}", "line 2: not UTF-8"),
        (ALIGN + "--gold {gold} --output {none}", "error: {gold}, sentence 1: the link 1-1, counted from 0, is outside"),
        ("align {languages} --source {text} --target {text} --output {none}", LANGUAGES),
        ("align {languages} --source {text} --target {text} --target_lang it", LANGUAGES),
        ("report {languages} --source {text} --reference {text} --output {none}", LANGUAGES),
        ("report {languages} --source {text} --reference {text} --output {none} --target_lang it", LANGUAGES),
        # Words of a command line
        ("trian", "error: there is no command 'trian': did you mean train?\n"),
        ("export x y", "did you mean export-onnx?"),
        ("--import ./typo recipes", "There is neither a file "),
        ("--import typo.py recipes", "There is neither a file "),
        ("--import .. recipes", "There is neither a file "),
        ("recipes --import", "error: argument --import: expected one argument\n"),
        ("train --import --dry_run", "error: argument --import: expected one argument\n"),
        ("recipes nmbers", "There is no recipe or suite nmbers. Did you mean numbers?"),
        ("recipes G2P.yaml", "Did you mean g2p?"),
        ("compare ./g2p --output runs", "There is no suite ./g2p."),
        ("train csan_hf/recipes/nmbers.yaml", "Did you mean numbers?"),
        ("compare naacl_tabel1 --output runs", "Did you mean naacl_table1?"),
        ("compare g2p --output runs --jobs 0", '"jobs": Not of type PositiveInt'),
        ("compare g2p --output runs --only all --publish ''", '"publish": Not of type NotEmptyStr'),
        ("translate", "required: model (csan-hf translate --help lists the arguments)"),
        (
            "translate --model x --num_beams few",
            'Parser key "num_beams": Expected',
        ),
        ("translate --model x --dtype int8", "Got value: int8"),
        ("translate --model x --top_k 5", "--temperature, --top_k and --top_p need --sample."),
        ("translate --model x --prefixes -", "can be standard input: name files."),
        ("translate --model x --terms -", "can be standard input: name files."),
        ("translate --model x --markup a", "Expected a typing.Literal['html', 'xliff']. Got value"),
        ("translate --model x --beams 5", "unrecognized arguments: --beams 5"),
        ("train numbers --processes 2", "start several by torchrun --nproc_per_node N -m csan_hf"),
        ("train --help sections", "unknown key sections. Did you mean "),
        ("evaluate --model x --hypotheses y", "give --model, or --hypotheses"),
        (
            "evaluate --model x --source y",
            "--source and --reference belong together",
        ),
        ("train", "csan-hf train numbers"),
        ("convert {model} {here}", "is not empty: choose a new directory"),
        ("convert {none} {out}", "There is no folder {none} to read the model from."),
        # A report
        (REPORT + "--output {here}", "{here}: Is a directory"),
        (REPORT + "--output {text}", "{text} is read, too, and would be overwritten"),
        (REPORT + "--output {gold}", "{gold} is there already and is no page"),
        (REPORT + "--output {text}/x.html", "{text}/x.html: Not a directory"),
        (REPORT + "--plots {text}", "{text}/scores_by_length.png: Not a directory"),
        (REPORT + "--baseline ours", "The baseline ours is none of the systems text"),
        (REPORT + "--bleu_tokenize 31a --metrics chrf", "tokenize must be one of none, zh"),
        (REPORT + "--metrics bleu comet", "COMET needs the program comet-score"),
        ("report {text} b={text},{text} --test randomisation --source {text} --reference {text}", "1 run and 2 of the baseline"),
        ("report {text} {text} --source {text} --reference {text}", "Two systems have one name"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line(words, message, places, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    before = files_in(tmp_path)
    assert main(shlex.split(words.format(**places))) == 2
    told = capsys.readouterr().err.splitlines(keepends=True)[-1]
    assert told.startswith("error: ")
    assert message.format(**places) in told
    assert files_in(tmp_path) == before


def test_a_full_disk_is_named_beside_what_is_copied_to_it(capsys):
    @script()
    def copy():
        raise OSError(errno.ENOSPC, "No space left on device", "layers.py", None, "run/layers.py")

    assert copy() == 2
    expected = "error: layers.py to run/layers.py: No space left on device\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize(
    ("words", "closed"),
    [
        ("translate --model {model}", "stdin"),
        ("align {model} --source {text}", "stdout"),
        ("evaluate --source {text} --reference {text} --hypotheses -", "stdin"),
    ],
)
def test_closed_streams_are_one_line(words, closed, places, capsys, monkeypatch):
    monkeypatch.setattr(sys, closed, None)
    assert main(words.format(**places).split()) == 2
    name = {"stdin": "input", "stdout": "output"}[closed]
    assert capsys.readouterr().err.startswith(f"error: standard {name} is closed")
