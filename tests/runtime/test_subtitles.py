# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Files of subtitles: what is translated, and that all else stays byte for byte."""

import bz2
import itertools

import pytest

from csan_hf_runtime.command_line import main
from csan_hf_runtime.graph_engine import GraphEngine
from csan_hf_runtime.subtitles import Subtitles, are_subtitles

TIMES = "1\n00:00:01,000 --> 00:00:02,500\n"
SRT = (
    "\ufeff1\r\n00:00:01,000 --> 00:00:02,500 X1:40 X2:600\r\n{\\an8}<i>It is two.</i>  \r\n\r\n\r\n"
    "00:00:03,000-->00:00:04,000\r\n- Two?\r\n<i>- Nine,</i>\r\n\r\n"  # without a number
    "3\r\n00:00:05,000 --> 00:00:06,000\r\n\r\n"  # without a text
    "4\r\n0:00:07.5 --> 0:00:08.5\r\n♪ and one  hundred ♪\r\n♪ is nine ♪\r\n"
    "5\r\n00:00:09,000 --> 00:00:10,000\r\n1984"
)
WEBVTT = (
    "WEBVTT - two --> nine\nKind: captions\n\nSTYLE\n::cue { color: red }\n\nREGION\nid:a\nlines:3\n\n"
    "NOTE\nof two\nlines\n\nintro 1\n00:01.000 --> 00:02.000 align:start position:0%\n"
    "<v.loud Ann Lee>Two &amp; nine</v>\n<v Bob>are &lt; me.\n\n\nNOTE nothing\n\n"
    "01:00:03.000 --> 01:00:04.000\n&gt;&gt; It is.\n>> So it is.\n\n"
    "3\n01:00:05.000 --> 01:00:06.000\n&nbsp;\n"
)


@pytest.fixture
def read(tmp_path):
    """A function that reads the subtitles of a text."""

    def read_content(content, **options):
        (tmp_path / "film.srt").write_bytes(content.encode())
        return Subtitles.read(tmp_path / "film.srt", **options)

    return read_content


def joined(subtitles, translations):
    return "".join(subtitles.written(*numbered) for numbered in enumerate(translations))


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (SRT, ["It is two.", "Two?", "Nine,", "and one  hundred", "is nine", "1984"]),
        (
            SRT.replace("\r\n", "\n"),
            ["It is two.", "Two?", "Nine,", "and one  hundred", "is nine", "1984"],
        ),
        (WEBVTT, ["Two & nine", "are < me.", "It is.", "So it is."]),
        (WEBVTT.replace("\n", "\r\n"), ["Two & nine", "are < me.", "It is.", "So it is."]),
    ],
)
def test_all_but_the_texts_stays_byte_for_byte(content, texts, read):
    subtitles = read(content)
    assert subtitles.texts == texts
    assert joined(subtitles, texts) == content


@pytest.mark.parametrize(
    ("cue", "text", "translation", "written"),
    [
        ("It is\r\nnine.", "It is nine.", "Es ist doch neun.", "Es ist\r\ndoch neun."),
        ("It is\nnine.", "It is nine.", "Neun.", "Neun."),
        ("It\nis\n nine.\n", "It is nine.", "Es ist Neunundneunzig", "Es ist\nNeunundneunzig\n"),
        ("It is\nnine", "It is nine", "現在是九點", "現在是\n九點"),
        ("It is\n-5 degrees.", "It is -5 degrees.", "Es sind -5 Grad.", "Es sind\n-5 Grad."),
        ("<i>–9</i>", "–9", "–8", "<i>–8</i>"),
        # Text behind a blank line
        ("It is\n\nnine.\n\n", "It is nine.", "Es ist neun.", "Es ist\nneun.\n\n"),
        # Tags
        ("<b>It <i>is</i>\nnine.</b>", "It is nine.", "Ja", "<b>Ja</b>"),
        ("<i>It</i> is <i>nine</i>.", "It is nine.", "Ja.", "Ja."),
        ("{\\an8}<i>It</i> is {\\i1}nine", "It is nine", "Ja", "{\\an8}Ja"),
        ("<00:01.000>It <00:02.000>is 2 <3", "It is 2 <3", "Ja", "Ja"),
        ("{\\an8}It is\n{\\an8}nine", "It is nine", "Ja", "{\\an8}Ja"),
        ("<v Bob>It is</v>\nnine", "It is nine", "Ja", "<v Bob>Ja"),
        ("\u202b<i>It is</i>\u202c", "It is", "Ja", "\u202b<i>Ja</i>\u202c"),
        ('<div class="x">It <em id=9>is</em></div>', "It is", "Ja", '<div class="x">Ja</div>'),
        ("I <b and c> <i am>", "I <b and c> <i am>", "Ja", "Ja"),
        ("<b>I <3 you -> if x<y and y>z", "I <3 you -> if x<y and y>z", "Ja", "<b>Ja"),
        ("It\tis\nnine", "It\tis nine", "Ja\tja nein", "Ja\tja\nnein"),
        ("Great 😀\nyes", "Great 😀 yes", "Unglaublich 😀", "Unglaublich\n😀"),
    ],
)  # fmt: skip
def test_a_cue_is_one_text_and_keeps_its_lines_and_outer_tags(
    cue, text, translation, written, read
):
    subtitles = read(TIMES + cue)
    assert subtitles.texts == [text]
    assert joined(subtitles, [translation]) == TIMES + written


def test_a_tag_without_end_takes_no_time_that_doubles_with_each_attribute(read):
    tag = "<i" + 99 * ' a="b"' + "<"
    assert read(f"{TIMES}{tag}\n").texts == [tag]


@pytest.mark.parametrize("mark", ["", "\u200f", "&rlm;"])
def test_marks_of_direction_may_stand_before_a_sign(mark, read):
    content = f"{TIMES}{mark}- It is.\n{mark}- No.\n"
    subtitles = read(content)
    assert subtitles.texts == ["It is.", "No."]
    assert joined(subtitles, subtitles.texts) == content


def test_a_song_ends_with_its_line(read):
    content = f"{TIMES}♪ It is\nnine ♪\nNo.\n"
    subtitles = read(content)
    assert subtitles.texts == ["It is nine", "No."]
    assert joined(subtitles, ["Es ist neun", "Nein."]) == f"{TIMES}♪ Es ist\nneun ♪\nNein.\n"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_numbers_apart_from_their_times_are_none_the_less(end, read):
    content = "".join(f"{line}\n\n" for line in ("1", TIMES.split("\n")[-2], "It is.", "2"))
    content = (content + f"{TIMES.split(chr(10))[-2]}\n\nNine\n").replace("\n", end)
    subtitles = read(content)
    assert subtitles.texts == ["It is.", "Nine"]
    assert joined(subtitles, subtitles.texts) == content


def test_another_speaker_has_lines_and_a_text_alone(read):
    subtitles = read(f"{TIMES}– It is,\nis it?\n<i>- No.</i>\n")
    assert subtitles.texts == ["It is, is it?", "No."]
    assert joined(subtitles, ["Es ist so?", "Nein."]) == f"{TIMES}– Es ist\nso?\n<i>- Nein.</i>\n"


def test_inner_tags_are_for_who_puts_them_back_and_are_not_broken(read):
    subtitles = read(f"{TIMES}{{\\an8}}<i>It</i> {{\\i1}}is\n<i>2 &lt; 9</i>\n", keeps_tags=True)
    assert subtitles.texts == ["<i>It</i> is <i>2 &lt; 9</i>"]
    translation = '<font color="red" size="9">Es</font> ist so'
    written = '<font color="red" size="9">Es</font>\nist so'
    assert joined(subtitles, [translation]) == f"{TIMES}{{\\an8}}{written}\n"


def test_a_line_of_spaces_is_within_a_cue_of_webvtt(read):
    content = f"WEBVTT\n\n{TIMES}It is\n \nnine.\n\nNOTE nothing\n"
    subtitles = read(content)
    assert subtitles.texts == ["It is nine."]
    assert joined(subtitles, ["Ja"]) == content.replace("It is\n \nnine.", "Ja")


def test_signs_of_webvtt_are_entities(read):
    head = "WEBVTT\n\n00:01.000 --> 00:02.000\n"
    [text] = read(f"{head}&#{5000 * '1'};\n").texts
    assert text == "\ufffd"
    subtitles = read(f"{head}2 --&gt; 9 &amp; 1\n")
    assert subtitles.texts == ["2 --> 9 & 1"]
    assert joined(subtitles, ["<3> --> 9 & 1"]) == f"{head}&lt;3> --&gt; 9 &amp; 1\n"


@pytest.mark.parametrize(
    ("translation", "written"),
    [
        ("現在<i>是</i>九點", "現在<i>是\n</i>九點"),
        ("<i>九</i>&amp;<i>二</i>", "<i>九</i>&amp;\n<i>二</i>"),
        ("\ue000現在<i>是</i>九", "\ue000現在<i>\n是</i>九"),
    ],
)
def test_tags_and_entities_between_wide_letters_are_not_broken(translation, written, read):
    subtitles = read(f"{TIMES}It is\nnine", keeps_tags=True)
    assert joined(subtitles, [translation]) == f"{TIMES}{written}"


def test_names_of_subtitles():
    for name in ("film.srt", "a/film.de.VTT", "film.srt.gz", "film.Vtt.XZ"):
        assert are_subtitles(name)
    for name in ("-", "film.txt", "srt", "film.srt/text", "film.gz"):
        assert not are_subtitles(name)


@pytest.mark.parametrize("kind", ["graphs", "folder"])
def test_the_command_writes_subtitles(kind, request, tmp_path, capsys):
    folder = request.getfixturevalue(kind)
    (tmp_path / "texts").write_text("It is two.\nTwo?\nNine,\nand one  hundred\nis nine\n1984\n")
    (tmp_path / "film.srt").write_bytes(SRT.encode())
    (tmp_path / "film.srt.bz2").write_bytes(bz2.compress(SRT.encode()))
    words = f"translate --model {folder} --quiet --unknown skip --input {tmp_path}"
    assert main(f"{words}/texts".split()) == 0
    translations = capsys.readouterr().out.splitlines()
    subtitles = Subtitles.read(tmp_path / "film.srt")
    expected = joined(subtitles, translations).encode()
    assert main(f"{words}/film.srt --output {tmp_path}/out.srt".split()) == 0
    assert (tmp_path / "out.srt").read_bytes() == expected
    assert not (tmp_path / "out.srt.partial").exists()
    assert main(f"{words}/film.srt.bz2 --output {tmp_path}/out.bz2".split()) == 0
    assert bz2.decompress((tmp_path / "out.bz2").read_bytes()) == expected


def test_a_stopped_command_leaves_no_half_of_subtitles(graphs, tmp_path, monkeypatch, capsys):
    searches = itertools.count()

    def search_or_stop(self, batch, original=GraphEngine.search):
        if next(searches) == 1:
            raise KeyboardInterrupt
        return original(self, batch)

    monkeypatch.setattr(GraphEngine, "search", search_or_stop)
    monkeypatch.setattr("csan_hf_runtime.windows.WINDOW_LINES", 2)
    (tmp_path / "film.srt").write_bytes(SRT.encode())
    words = f"translate --model {graphs} --quiet --input {tmp_path}/film.srt --output {tmp_path}/o"
    assert main(words.split()) == 130
    assert "\nInterrupted. 0 translations are written.\n" in f"\n{capsys.readouterr().err}"
    assert [file.name for file in tmp_path.iterdir()] == ["film.srt"]
    assert main(words.split()) == 0
