# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""`csan-hf align` on files, with a tiny untrained model."""

from itertools import product

import pytest
from system.translate.conftest import run

from csan_hf.evaluation import align, translate
from csan_hf_runtime.text_files import write_lines

SOURCES = ["one two", "", "the number is twenty-one.", "three two one"]
TARGETS = ["eins zwei", "", "die Zahl ist einundzwanzig.", "drei zwei eins"]


@pytest.fixture
def files(tmp_path):
    """Words that name a source and a target."""
    write_lines(tmp_path / "in.en", SOURCES)
    write_lines(tmp_path / "in.de.gz", TARGETS)
    return f"--quiet --source {tmp_path}/in.en --target {tmp_path}/in.de.gz"


def lines_of(alignments, **options):
    return "".join(f"{alignment.pharaoh(**options)}\n" for alignment in alignments)


def test_files_and_options(folder, files, model, tokenizers, tmp_path, capfd):
    words = f"align {folder} {files} --output {tmp_path}/out"
    assert run(f"{words} --heat_map {tmp_path}/picture.png --sentence 3") == 0
    links = (tmp_path / "out").read_text()
    assert links == lines_of(align(model, tokenizers, SOURCES, TARGETS))
    assert links.split("\n")[1] == ""
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert capfd.readouterr().out == ""
    assert run(f"{words} --threshold 0.2 --symmetric --layer 0") == 0
    first_layer = align(model, tokenizers, SOURCES, TARGETS, layer=0)
    chosen = lines_of(first_layer, threshold=0.2, symmetric=True)
    assert (tmp_path / "out").read_text() == chosen
    assert len({links, chosen, lines_of(first_layer)}) == 3, "each makes a difference"


def test_a_gold_file(folder, files, model, tokenizers, tmp_path, capfd):
    links = lines_of(align(model, tokenizers, SOURCES, TARGETS))
    (tmp_path / "gold").write_text(links.partition(" ")[2])  # without the first link
    count = links.count("-")
    assert run(f"align {folder} {files} --gold {tmp_path}/gold") == 0
    rate = 100 * (1 - 2 * (count - 1) / (2 * count - 1))
    precision = 100 * (count - 1) / count
    expected = f"alignment error rate {rate:.2f}, precision {precision:.2f}, recall 100.00\n"
    assert capfd.readouterr().err == expected


def test_standard_input_and_the_models_translations(
    folder, model, tokenizers, tmp_path, standard_input, capsys
):
    standard_input("".join(f"{line}\n" for line in SOURCES))
    words = f"align {folder} --source - --num_beams 2 --translations {tmp_path}/translations"
    assert run(words) == 0
    printed, told = capsys.readouterr()
    translations = translate(model, tokenizers, SOURCES, num_beams=2)
    assert printed == lines_of(align(model, tokenizers, SOURCES, translations))
    assert (tmp_path / "translations").read_text().split("\n") == [*translations, ""]
    assert "aligning" in told


def test_a_model_of_several_languages_reads_a_tag_that_is_no_word(
    of_two_languages, files, tmp_path, capsys
):
    write_lines(tmp_path / "typed", [line and f">>de<< {line}" for line in SOURCES])
    links = []
    for words in (f"{files} --target_lang de", files.replace("in.en", "typed")):
        assert run(f"align {of_two_languages} {words} --threshold 0") == 0
        links.append(capsys.readouterr().out)
    assert links[0] == links[1]
    expected = []
    for source, target in zip(SOURCES, TARGETS, strict=True):
        pairs = product(range(len(source.split())), range(len(target.split())))
        expected.append(" ".join(f"{word}-{translation}" for word, translation in pairs))
    assert links[0].splitlines() == expected
