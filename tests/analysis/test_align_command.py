# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""`csan-hf align` on files, with a tiny untrained model."""

import gzip

import pytest
import tiny

import csan_hf_cli
from csan_hf.analysis import align
from csan_hf.evaluation import translate

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
    source.write_text("".join(f"{line}\n" for line in SOURCES))
    with gzip.open(target, "wb") as file:
        file.write("".join(f"{line}\n" for line in TARGETS).encode())
    return source, target


def lines_of(alignments, **options):
    return "".join(f"{alignment.pharaoh(**options)}\n" for alignment in alignments)


def test_files(folder, files, model, tokenizers, tmp_path, capfd):
    alignments = align(model, tokenizers, SOURCES, TARGETS)
    words = f"{folder} --source {files[0]} --target {files[1]} --device cpu --quiet"
    output, picture = tmp_path / "out", tmp_path / "picture.png"
    words += f" --output {output}"
    assert main(f"{words} --heat_map {picture} --sentence 3") == 0
    assert output.read_text() == lines_of(alignments)
    assert output.read_text().split("\n")[1] == ""
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert capfd.readouterr().out == ""
    assert main(f"{words} --threshold 0.2 --symmetric --layer 0") == 0
    expected = align(model, tokenizers, SOURCES, TARGETS, layer=0)
    assert output.read_text() == lines_of(expected, threshold=0.2, symmetric=True)
    assert len({lines_of(alignments), lines_of(expected), output.read_text()}) == 3, (
        "the options make a difference"
    )


def test_a_gold_file(folder, files, model, tokenizers, tmp_path, capfd):
    gold, links = (
        tmp_path / "gold",
        [each.pharaoh() for each in align(model, tokenizers, SOURCES, TARGETS)],
    )
    words = f"{folder} --source {files[0]} --target {files[1]} --device cpu --quiet"
    words += f" --output {tmp_path}/out --gold {gold}"
    gold.write_text("".join(f"{line}\n" for line in links))
    assert main(words) == 0
    assert capfd.readouterr().err == "alignment error rate 0.00, precision 100.00, recall 100.00\n"
    naacl = [
        f"{number} {int(source) + 1} {int(target) + 1}"
        for number, line in enumerate(links, 1)
        for source, target in (link.split("-") for link in line.split())
    ]
    gold.write_text("\n".join(naacl[1:]))  # one link is found and not in the gold file
    assert main(words) == 0
    n = len(naacl)
    rate, precision = 100 * (1 - 2 * (n - 1) / (2 * n - 1)), 100 * (n - 1) / n
    expected = f"alignment error rate {rate:.2f}, precision {precision:.2f}, recall 100.00\n"
    assert capfd.readouterr().err == expected
    gold.write_text("1-1 2-2\n\n1-1\n1-1\n")  # counted from 1
    (tmp_path / "out").unlink()
    assert main(words) == 2
    assert (
        f"error: {gold}, sentence 1: the link 2-2, counted from 0, is outside"
        in capfd.readouterr().err
    )
    assert not (tmp_path / "out").exists(), (
        "what is wrong with it is said before anything is aligned"
    )


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
