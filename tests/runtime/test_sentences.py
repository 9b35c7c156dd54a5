# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Texts are split into lines and sentences, and put together again."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csan_hf_runtime.sentences import SplitText, sentences_of, split_text

TEXT = "  eins zwei\n\n\tein Hund und ein Haus \r\nKatze\n \n"


def split(text, limit=None, language="de"):
    """With words for tokens."""
    return split_text(
        text, count_tokens=lambda piece: len(piece.split()), limit=limit, language=language
    )


@pytest.mark.parametrize(
    "text", [TEXT, "", " \n ", "a", "\u2028a\x0bb\r\r\nc", "Satz eins.  Satz zwei!\nDrei. Vier."]
)
@pytest.mark.parametrize("limit", [None, 2])
def test_nothing_is_lost(text, limit):
    parts = split(text, limit)
    pieces = zip(parts.gaps, (*parts.segments, ""), strict=True)
    assert "".join(gap + segment for gap, segment in pieces) == text
    assert not any(gap.strip() for gap in parts.gaps)
    assert all(segment == segment.strip() != "" for segment in parts.segments)
    if limit is None:
        assert {line.strip() for line in text.splitlines()} - {""} == {*parts.segments}


def test_sentences_of_a_long_line():
    text = "Das kostet z. B. am 3. Mai mehr. Wirklich?  Ja!\nKurz. Gut."
    parts = split(text, 8)
    assert parts.segments == ("Das kostet z. B. am 3. Mai mehr.", "Wirklich?", "Ja!", "Kurz. Gut.")
    assert parts.join(["A.", "B?", "C!", "D. E."]) == "A. B?  C!\nD. E."
    chinese = split_text("你好。世界！", count_tokens=len, limit=4, language="zho_Hans")
    assert chinese.segments == ("你好。", "世界！")
    assert chinese.join(["Hello.", "World!"]) == "Hello. World!"
    assert chinese.join(["今日は。", "世界！"]) == "今日は。世界！"
    english = split("Hello there. World there!", 2, "eng_Latn")
    assert english.join(["你好。", "世界！"]) == "你好。世界！"


def test_what_is_still_too_long_is_said(caplog):
    text = "eins zwei drei, vier fünf sechs sieben acht"
    parts = split(text, 4)
    assert parts.segments == ("eins zwei drei,", "vier fünf sechs", "sieben acht")
    assert parts.join(parts.segments) == text
    assert "longer than the 4 tokens" in caplog.text
    assert "in 3 parts: 'eins zwei drei, vier" in caplog.text
    one_word = split_text("a" * 11, count_tokens=len, limit=4, language=None)
    assert "".join(one_word.segments) == "a" * 11
    assert max(map(len, one_word.segments)) <= 4
    # What cannot be shortened is left whole, rather than searched for ever
    letters = split_text("ab", count_tokens=lambda piece: 9, limit=4, language=None)
    assert letters.segments == ("a", "b")


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        ("de", "„Ein Hund läuft im Schnee. |Eine Frau sitzt.“ |Dann fährt ein Mann Rad."),
        ("de", "Er sagte: »Sie rief: ›Ein Hund läuft. |Ein Kind sitzt.‹ |Dann ging er.« |Gut."),
        ("en", "He said 'A dog runs. |It's big.' |The dogs' house. |A cat."),
        ("en", '"Stop!" he said. |"I go." |Then he said: "It rains. |It snows." and left.'),
        ("en", "(A dog runs. |It is big.) |The dog (It is brown. It is big.) sits. |(It is good.) |No."),
        ("en", "'Tis good. |It's the file a.b.c, see \"x.Y. z\" there."),
        ("zh", "他说：“你好。|世界！”|好。"),
        ("en", "1. One thing. |2. Another thing. |In 1990. |In 5. |There."),
        ("de", "Im 15. Jahrhundert war Krieg. |Er ist 15. |Sie ist 12. |Peter ist 15. |Das 2. Mal. |Es ist Linux 2. |Ja."),
        ("de", "Abb. 3. |("),
        ("de", "»Heute ist der 15. «"),
        ("de", "Die Sitzung endet am 15. |Bitte kommen Sie. |Im frühen 20. Jahrhundert."),
        ("de", "Sie las „Band 2. Das Ende“ und ging. |„Es regnet. |Es schneit“, sagte sie."),
        ("en", 'The band "Panic! At the Disco" played. |"It rains. |It snows," he said. |Yes.'),
        ("en", '100. "'),
        ("en", '" A dog runs . "'),
        ("fr", "« Il pleut. » |Il sort. |« Bonjour. »"),
        ("cs", "V 15. století byla válka. |Je mi 15. |Jdu."),
        *((code, "Am 3. Mai. |Zwei.") for code in ("de", "deu", "ger", "deu_Latn", "DE-AT")),
        *((code, "Eins. |Zwei.") for code in ("und", "ady", "hbs_latn", "words", "")),
        ("en", "(" * 2000 + "A dog runs. |It is big." + ")" * 2000),
    ],
)  # fmt: skip
def test_sentences_within_quotes_and_brackets_and_numbers(language, sentences):
    assert sentences_of(sentences.replace("|", ""), language) == sentences.split("|")


@given(st.text(alphabet="aA1.! '\"„“»«()「」。\u00a0\u2009\u3000\u2028\t", max_size=30))
def test_sentences_joined_are_the_line(line):
    sentences = sentences_of(line, "de")
    assert "".join(sentences) == line
    assert all(sentences)


def test_a_line_is_read_in_parts():
    sentence = "Zwei Hunde laufen. "
    assert sentences_of(sentence * 1000, "de") == [sentence] * 1000
    words = "Wort " * 3000
    parts = sentences_of(words + "Ende. Zwei.", "de")
    assert "".join(parts) == words + "Ende. Zwei."
    assert all(part.startswith(("Wort", "Ende", "Zwei")) for part in parts)


@pytest.mark.parametrize(
    ("first", "second", "space"),
    [
        ("你好。", "我是学生。", ""),
        ("안녕하세요.", "저는 학생입니다.", " "),
        ("Great 😀", "See you.", " "),
    ],
)
def test_sentences_are_set_apart_as_their_script_is_written(first, second, space):
    split_text = SplitText(("a", "b"), ("", " ", ""))
    assert split_text.join([first, second]) == first + space + second


@pytest.mark.parametrize(
    ("segments", "gap", "tag", "translations", "last_link"),
    [
        (("a b", "c"), " ", "", ["x", "y z"], (2, 2)),
        (("a b", "c"), "", "", ["走", "y z"], (1, 1)),  # cut within a word
        (("T a", "T c"), " ", "T", ["x", "y z"], (1, 2)),
    ],
)
def test_links_count_over_the_whole_text(segments, gap, tag, translations, last_link):
    split_text = SplitText(segments, ("", gap, ""), tag=tag)
    links = [[(0, 0), (1, 0)], [(0, 1)]]
    word = re.compile(r"\S+")
    joined = split_text.join_links(translations, links, source_word=word, target_word=word)
    assert joined == [(0, 0), (1, 0), last_link]
