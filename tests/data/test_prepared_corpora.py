# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Corpora that scripts prepare: documents, and words of ten languages with their phones."""

import itertools
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from csan_hf.data import DataArguments, load_translation_dataset
from csan_hf_runtime.command_line import run
from csan_hf_runtime.text_files import write_lines

SCRIPTS = Path(__file__).parents[2] / "scripts"
HELP = runpy.run_path(str(SCRIPTS / "prepare_help.py"))
DEBIAN = runpy.run_path(str(SCRIPTS / "prepare_debian.py"))
SIGMORPHON = runpy.run_path(str(SCRIPTS / "prepare_sigmorphon.py"))
prepare_help = HELP["prepare_help"]


def write_page(folder, name, paragraphs):
    path = folder / "text" / "guide" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    body = "".join(
        f'<p id="{key}" class="paragraph">{text}</p>\n' for key, text in paragraphs.items()
    )
    path.write_text(
        f"<html><title>not this</title><body><h1 id='hd_id1'>{name}</h1>{body}</body></html>"
    )


def lines_of(folder, name):
    return (folder / name).read_text().splitlines()


def test_pages_are_joined_by_their_ids_and_long_ones_are_for_tests(tmp_path):
    folders = {"d": tmp_path / "de", "e": tmp_path / "en"}
    for number in range(40):
        words = 30 if number < 4 else 4
        for letter, folder in folders.items():
            paragraphs = {f"par_id{row}": f"{letter}{number}.{row} " * words for row in range(3)}
            paragraphs["par_id8"] = f"<b>{letter}</b> &amp;\n in every page"
            paragraphs["other"] = "not a paragraph"
            paragraphs[f"par_id9{letter}"] = "only in one language"
            write_page(folder, f"page{number}.html", paragraphs)
    write_page(folders["d"], "german.html", {"par_id1": "without a translation"})
    output = tmp_path / "out"
    counts = prepare_help(*folders.values(), output, piece_words=12, page_words=(60, 100))
    for split, count in counts.items():
        german = lines_of(output, f"{split}.de")
        assert len(german) == count
        assert [line.replace("d", "e") for line in german] == lines_of(output, f"{split}.en")
    segments = lines_of(output, "test_segments.de")
    [page] = lines_of(output, "test_pages.de")
    assert page == " ".join(segments)
    assert 90 <= len(page.split()) <= 100
    assert lines_of(output, "test_segments.page") == ["0"] * len(segments)
    pieces = lines_of(output, "train.de") + lines_of(output, "validation.de")
    assert all(len(set(line.split())) > 1 or len(line.split()) <= 30 for line in pieces)
    trained = " ".join(pieces)
    assert not set(segments[1].split()) & set(trained.split())
    assert f"{trained} {page}".count("d & in every page") == 1
    patterns = {split: f"{split}.{{lang}}" for split in ("train", "validation", "test")}
    data, _ = load_translation_dataset(
        DataArguments(data_dir=str(output / "documents"), documents=True, **patterns)
    )
    assert data["test"]["target"][:] == ["\n".join(segments)]
    documents = " ".join(data["validation"]["target"][:] + data["train"]["target"][:]).split()
    assert sorted(documents) == sorted(trained.split())
    assert not {"without", "only"} & set(trained.split())


def test_folders_without_pages_are_named(tmp_path):
    write_page(tmp_path / "de", "a.html", {"par_id1": "eins<br/>zwei"})
    message = r"Nothing is left for train, .*: there are 0 pages text/\*\*/\*.html in both"
    with pytest.raises(ValueError, match=message):
        prepare_help(tmp_path / "de", tmp_path / "en", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_commands(tmp_path, capsys):
    for number in range(9):
        for folder in ("de", "en"):
            write_page(tmp_path / folder, f"{number}.html", {"par_id1": f"{folder} {number} . ."})
    output = tmp_path / "out"
    folders = [str(tmp_path / "de"), str(tmp_path / "en"), str(output)]
    assert HELP["main"](["corpus", *folders, "--page_words", "[3, 9]"]) == 0
    assert "test_pages: 1 lines" in capsys.readouterr().out
    files = [str(output / f"test_{name}") for name in ("segments.de", "segments.en", "pages.de")]
    assert HELP["main"](["join", *files]) == 0
    assert capsys.readouterr().out == (output / "test_pages.en").read_text()
    (tmp_path / "one_train.tsv").write_text("ab\ta b\n")
    (tmp_path / "one_dev.tsv").write_text("ab\ta b\n")
    words = [str(tmp_path), str(tmp_path / "words"), "--languages", '["one"]']
    assert run(SIGMORPHON["prepare_multilingual"], words) == 0
    assert "train.tsv: 1 words" in capsys.readouterr().out


def test_descriptions_of_one_source_are_in_one_split(tmp_path, capsys):
    shared = "The letters of this paragraph are in all packages made of one source."
    for language in ("de", "en"):
        entries = []
        for number in range(20):
            of_family = shared if number < 12 else f"Of package {number}."
            paragraphs = f"{language} {number}\n {of_family}\n .\n  * first\n  * {number}"
            if language == "de" and number == 19:
                paragraphs += "\n .\n one more"
            entries.append(
                f"Package: p{number}\nDescription-md5: {number}\n"
                f"Description-{language}: {paragraphs}\n\n"
            )
        (tmp_path / f"Translation-{language}").write_text("".join(entries[:1] + entries))
    files = [str(tmp_path / name) for name in ("Translation-de", "Translation-en", "out")]
    assert run(DEBIAN["prepare_debian"], [*files, "--held_out", "3"]) == 0
    assert "dev: 3 descriptions\ntest: 3 descriptions\ntrain: " in capsys.readouterr().out
    documents = {
        split: (tmp_path / "out" / f"{split}.en").read_text().split("\n\n")[:-1]
        for split in ("dev", "test", "train")
    }
    number = documents["dev"][0].split()[1]
    assert documents["dev"][0].startswith(f"en {number}\n")
    assert documents["dev"][0].endswith(f".\n* first * {number}")
    shared_counts = []
    for texts in documents.values():
        shared_counts.append(sum(shared in text for text in texts))
    assert sorted(shared_counts) in ([0, 0, 1], [0, 0, 12])
    assert not any("19" in text for text in itertools.chain(*documents.values()))
    with pytest.raises(ValueError, match="have 8 unlike descriptions in common: hold out"):
        DEBIAN["prepare_debian"](*map(Path, files), held_out=4)


def test_words_of_several_languages(tmp_path, capsys):
    dev = [f"{letter}\tx y" for letter in "abcdefg"]
    words = {"one_train": ["ab\ta b"], "one_dev": dev}
    words |= {"two_train": ["c\tz"], "two_dev": dev[:2], "two_test": ["d\tz"]}
    for name, lines in words.items():
        write_lines(tmp_path / f"{name}.tsv", lines)
    SIGMORPHON["prepare_multilingual"](tmp_path, tmp_path / "out", languages=["one", "two"])
    counts = {"one_dev.tsv": 7, "two_dev.tsv": 2, "two_test.tsv": 1, "train.tsv": 2}
    counts["validation.tsv"] = 3
    told = {f"{name}: {count} words" for name, count in counts.items()}
    assert {*capsys.readouterr().out.splitlines()} == told
    assert (tmp_path / "out/train.tsv").read_text() == "<one> a b\ta b\n<two> c\tz\n"
    assert SIGMORPHON["word_symbols"]("vie", "ăn gì") == "<vie> a \u0306 n \u2581 g i \u0300"
    validation = (tmp_path / "out/validation.tsv").read_text()
    assert validation == "<one> a\tx y\n<one> f\tx y\n<two> a\tx y\n"


class InflectedWords:
    """Stands for simplemma's dictionaries: forms and their lemmas, by language."""

    def get_dictionary(self, code):
        """Words of any language but their first letter."""
        return {"abba": "ab", "cabab": "cab", "a": "a", "axe": "axe", f"{code}a": "ba"}


def test_words_without_pronunciations(tmp_path, monkeypatch, capsys):
    dictionaries = SimpleNamespace(DefaultDictionaryFactory=InflectedWords)
    counted = SimpleNamespace(
        iter_wordlist=lambda code: iter(["caf\u00e9", "cafe\u0301", "xx", "ko"])
    )
    module = "simplemma.strategies.dictionaries.dictionary_factory"
    monkeypatch.setitem(sys.modules, module, dictionaries)
    monkeypatch.setitem(sys.modules, "wordfreq", counted)
    script = runpy.run_path(str(SCRIPTS / "prepare_words.py"))
    for language in script["SIMPLEMMA"]:
        write_lines(tmp_path / f"{language}_train.tsv", ["abc\tx y"])
    for language in script["WORDFREQ"]:
        write_lines(tmp_path / f"{language}_train.tsv", ["caf\u00e9\tx", "oak\tx y"])
    assert run(script["prepare_words"], [str(tmp_path), "--count", "3"]) == 0
    assert "dut_words.txt: 3 of 5 words\n" in capsys.readouterr().out
    words = (tmp_path / "dut_words.txt").read_text().split()
    assert len(words) == 3
    assert words == sorted({*words} & {"ab", "abba", "ba", "cab", "cabab"})
    assert (tmp_path / "kor_words.txt").read_text() == "caf\u00e9\nko\n"
