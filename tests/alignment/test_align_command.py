# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""`csan-hf align` on files, with a tiny untrained model."""

import copy
from itertools import product

import pytest
import tiny

import csan_hf_cli
from csan_hf.data.tokenization import add_language_tags
from csan_hf.evaluation import align, translate
from csan_hf_runtime.text_files import write_lines

SOURCES = ["one two", "", "the number is twenty-one.", "three two one"]
TARGETS = ["eins zwei", "", "die Zahl ist einundzwanzig.", "drei zwei eins"]


def main(words):
    return csan_hf_cli.main(["align", *words.split()])


@pytest.fixture(scope="module")
def model(tokenizers):
    model = tiny.csan(vocab_size=len(tokenizers.source))
    model.generation_config.max_length = 12
    return model


@pytest.fixture(scope="module")
def folder(model, tokenizers, tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    model.save_pretrained(path)
    tokenizers.save_pretrained(path)
    return str(path)


@pytest.fixture
def files(tmp_path):
    source, target = tmp_path / "in.en", tmp_path / "in.de.gz"
    write_lines(source, SOURCES)
    write_lines(target, TARGETS)
    return source, target


@pytest.fixture
def words(folder, files, tmp_path):
    """The command on the files, which writes to `out`."""
    source, target = files
    words = f"{folder} --source {source} --target {target} --output {tmp_path}/out"
    return f"{words} --device cpu --quiet"


def lines_of(alignments, **options):
    return "".join(f"{alignment.pharaoh(**options)}\n" for alignment in alignments)


def test_files(words, model, tokenizers, tmp_path, capfd):
    picture = tmp_path / "picture.png"
    assert main(f"{words} --heat_map {picture} --sentence 3") == 0
    links = (tmp_path / "out").read_text()
    assert links == lines_of(align(model, tokenizers, SOURCES, TARGETS))
    assert links.split("\n")[1] == ""
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert capfd.readouterr().out == ""


def test_options(words, model, tokenizers, tmp_path):
    assert main(f"{words} --threshold 0.2 --symmetric --layer 0") == 0
    links = (tmp_path / "out").read_text()
    alignments = align(model, tokenizers, SOURCES, TARGETS, layer=0)
    assert links == lines_of(alignments, threshold=0.2, symmetric=True)
    last_layer = align(model, tokenizers, SOURCES, TARGETS)
    assert len({links, lines_of(alignments), lines_of(last_layer)}) == 3, "each makes a difference"


def test_a_gold_file(words, model, tokenizers, tmp_path, capfd):
    gold = tmp_path / "gold"
    links = lines_of(align(model, tokenizers, SOURCES, TARGETS))
    gold.write_text(links.partition(" ")[2])  # without the first link
    count = links.count("-")
    assert main(f"{words} --gold {gold}") == 0
    rate = 100 * (1 - 2 * (count - 1) / (2 * count - 1))
    precision = 100 * (count - 1) / count
    expected = f"alignment error rate {rate:.2f}, precision {precision:.2f}, recall 100.00\n"
    assert capfd.readouterr().err == expected


def test_a_wrong_gold_file_is_named_before_anything_is_aligned(words, tmp_path, capfd):
    gold = tmp_path / "gold"
    gold.write_text("1-1 2-2\n\n1-1\n1-1\n")  # counted from 1
    assert main(f"{words} --gold {gold}") == 2
    error = f"error: {gold}, sentence 1: the link 2-2, counted from 0, is outside"
    assert error in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


def test_standard_input_and_the_models_translations(
    folder, model, tokenizers, tmp_path, standard_input, capsys
):
    standard_input("".join(f"{line}\n" for line in SOURCES))
    words = f"{folder} --source - --num_beams 2 --translations {tmp_path}/translations"
    assert main(words) == 0
    printed, told = capsys.readouterr()
    translations = translate(model, tokenizers, SOURCES, num_beams=2)
    assert printed == lines_of(align(model, tokenizers, SOURCES, translations))
    assert (tmp_path / "translations").read_text().split("\n") == [*translations, ""]
    assert "aligning" in told


@pytest.fixture(scope="module")
def of_two_languages(tokenizers, tmp_path_factory):
    """The folder of a model whose sources begin with the tag of their target language."""
    pair = copy.deepcopy(tokenizers)
    add_language_tags(pair, [">>de<<", ">>fr<<"])
    model = tiny.csan(vocab_size=len(pair.source))
    model.generation_config.max_length = 12
    path = tmp_path_factory.mktemp("languages")
    model.save_pretrained(path)
    pair.save_pretrained(path)
    return path


def test_a_model_of_several_languages_reads_a_tag_that_is_no_word(
    of_two_languages, files, tmp_path, capsys
):
    source, target = files
    typed = tmp_path / "typed"
    write_lines(typed, [line and f">>de<< {line}" for line in SOURCES])
    links = []
    for options in (f"--source {source} --target_lang de", f"--source {typed}"):
        assert main(f"{of_two_languages} {options} --target {target} --quiet --threshold 0") == 0
        links.append(capsys.readouterr().out)
    assert links[0] == links[1]
    expected = []
    for source_text, target_text in zip(SOURCES, TARGETS, strict=True):
        pairs = product(range(len(source_text.split())), range(len(target_text.split())))
        expected.append(" ".join(f"{word}-{translation}" for word, translation in pairs))
    assert links[0].splitlines() == expected


@pytest.mark.parametrize(
    "command", ["align {model} --target {target}", "report {model} --reference {target}"]
)
@pytest.mark.parametrize("options", ["", "--target_lang it"])
def test_a_model_of_several_languages_asks_for_one(
    command, options, of_two_languages, files, tmp_path, capsys
):
    words = command.format(model=of_two_languages, target=files[1])
    words = f"{words} --source {files[0]} --output {tmp_path}/out.html --quiet {options}"
    assert csan_hf_cli.main(words.split()) == 2
    assert "error: The model translates into de, fr: give one of them" in capsys.readouterr().err
    assert not (tmp_path / "out.html").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--target {short}", "short.de has 2: line 3"),
        ("{pair} --source {none}", "none"),
        ("{pair} --source {latin}", "line 1: not UTF-8"),
        (
            "{pair} --heat_map {none} --sentence 0",
            "--sentence must be from 1 to 4, the number of pairs, got 0",
        ),
        ("{pair} --threshold 1", "threshold must be at least 0 and less than 1, got 1"),
        ("{pair} --num_beams 2", "leave out --target"),
        ("{pair} --translations {none}", "leave out --target"),
        ("--gold {none}", "give --target too"),
        (
            "--target {short} --heat_map {short}",
            "short.de is read, too, and would be overwritten",
        ),
    ],
)
def test_errors_are_one_line(folder, files, tmp_path, capsys, words, message):
    """Of an option that is given twice the last counts."""
    (tmp_path / "short.de").write_text("eins\nzwei\n")
    (tmp_path / "latin").write_bytes(b"\xe4\n")
    places = {"short": f"{tmp_path}/short.de", "none": f"{tmp_path}/none"}
    places |= {"latin": f"{tmp_path}/latin", "pair": f"--target {files[1]}"}
    start = f"{folder} --quiet --device cpu --source {files[0]}"
    assert main(f"{start} {words}".format(**places)) == 2
    error = capsys.readouterr().err
    assert "error: " in error
    assert message in error
