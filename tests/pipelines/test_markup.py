# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Inline tags, taken out of texts and put into translations."""

import html
import re
from collections import Counter
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csan_hf_runtime.command_line import main
from csan_hf_runtime.markup import Page, parse_markup
from csan_hf_runtime.sentences import split_text

WORD = re.compile(r"\S+")
TAG = re.compile(r"<[^>]*>")


def restored(source, kind, translation, links):
    marked = parse_markup(source, kind)
    return marked.restore(translation, links, source_word=WORD, target_word=WORD)


@st.composite
def marked_texts(draw, depth=3):
    """Well-formed markup; every tag has a number of its own."""
    parts = []
    for _ in range(draw(st.integers(0, 4))):
        number = draw(st.integers(1, 10**6))
        kinds = ["word", "word", "empty", *(["pair"] if depth else [])]
        kind = draw(st.sampled_from(kinds))
        if kind == "word":
            parts.append(
                draw(st.sampled_from(["a", "b, ", "(c) ", " ", "&amp; ", "&lt;", ". ", "é"]))
            )
        elif kind == "empty":
            parts.append(f'<x id="{number}"/>')
        else:
            parts.append(f'<g id="{number}">{draw(marked_texts(depth=depth - 1))}</g>')
    return "".join(parts)


def parents(marked):
    """The tag around each tag, by their numbers."""
    root = ElementTree.fromstring(f"<root>{marked}</root>")
    pairs = Counter()
    for parent in root.iter():
        pairs.update((child.tag, child.get("id"), parent.get("id")) for child in parent)
    return pairs


@given(marked_texts(), st.lists(st.sampled_from(["u", "v,", "&w", "(y)."]), max_size=6), st.data())
def test_any_markup_comes_back_well_formed(source, words, data):
    translation = " ".join(words)
    count = len(parse_markup(source, "xliff").text.split())
    links = []
    if count and words:
        link = st.tuples(st.integers(0, count - 1), st.integers(0, len(words) - 1))
        links = data.draw(st.lists(link, max_size=8))
    for kind in ("html", "xliff"):
        marked = restored(source, kind, translation, links)
        assert parents(marked) == parents(source)
        # A tag like a word of its own has spaces around it
        assert html.unescape(TAG.sub("", marked)).split() == translation.split()


@pytest.mark.parametrize(
    ("kind", "source", "translation", "links", "expected"),
    [
        ("html", "a <b>b c</b> d", "D C A B", "3-0 2-1 0-2 1-3", "D <b>C A B</b>"),
        ("html", "a <b>b</b>, (<i>c</i>).", "A B; (C)!", "0-0 1-1 2-2", "A <b>B</b>; (<i>C</i>)!"),
        ("html", "<i>a <b>b</b></i> c", "B A C", "1-0 0-1 2-2", "<i><b>B</b> A</i> C"),
        ("html", "a <b/>b", "B A", "1-0 0-1", "<b/>B A"),
        ("html", "a<wbr>.", "A.", "0-0", "A<wbr>."),
        ("html", "a <b>b</b> c", "A C", "0-0 2-1", "A <b></b>C"),
        ("html", "<a>a b</a> <b>c d</b>", "A C B D", "0-0 2-1 1-2 3-3", "<a>A C B</a> <b>D</b>"),
        ("html", "<u>a <i>b</u> &eacute; &lt;", "A B é <", "0-0 1-1 2-2 3-3", "<u>A <i>B</u> é &lt;"),
        ("html", "a <!-- b --> c", "C A", "1-0 0-1", "<!-- b --> C A"),
        ("xliff", '<ph id="1">%s</ph> a', "A", "0-0", '<ph id="1">%s</ph> A'),
        ("xliff", '<bx id="1"/>a<ex id="1"/> b', "B A", "1-0 0-1", 'B <bx id="1"/>A<ex id="1"/>'),
        ("xliff", '<bx id="1"/><g>a<ex id="1"/></g>', "A", "0-0", '<bx id="1"/><g>A<ex id="1"/></g>'),
        ("html", "", "", "", ""),
        ("html", "1 < 2", "1 < 2", "0-0", "1 &lt; 2"),
        ("xliff", "a\n<b\n>b</b>\r\n<i>c</i>", "A\nB\nC", "0-0 1-1 2-2", "A\n<b\n>B</b>\n<i>C</i>"),
        ("html", "<script>1 < 2</script> a", "A", "0-0", "<script>1 < 2</script> A"),
        ("html", "<b translate=no><b>a</b> a</b> a", "A", "0-0", "<b translate=no><b>a</b> a</b> A"),
        ("html", "<b TRANSLATE='No'>a</b> a", "A", "0-0", "<b TRANSLATE='No'>a</b> A"),
        ("html", "<b title='?translate=no'>a</b>", "A", "0-0", "<b title='?translate=no'>A</b>"),
        ("xliff", "<mrk mtype='protected'>a</mrk> a", "A", "0-0", "<mrk mtype='protected'>a</mrk> A"),
        ("html", "a <b translate=no>b</b> c d", "A C D", "0-0 2-2 3-1", "A C <b translate=no>b</b> D"),
        ("xliff", 'a <x id="1"/> <x id="2"/> b', "A B", "0-0 1-1", 'A <x id="1"/> <x id="2"/> B'),
        ("xliff", 'a <x id="1"/><x id="2"/> b', "A B", "0-0 1-1", 'A <x id="1"/><x id="2"/> B'),
        ("html", "a <i class=b></i> c", "A C", "0-0 1-1", "A <i class=b></i> C"),
        ("html", "a <a><img></a> c", "A C", "0-0 1-1", "A <a><img></a> C"),
        ("xliff", 'a <x id="1"/>', "A", "0-0", 'A<x id="1"/>'),
        ("xliff", 'a<x id="1"/> b', "A B", "0-0 1-1", 'A <x id="1"/>B'),
        ("html", "<ul><li translate=no>a<li>b</ul>", "B", "0-0", "<ul><li translate=no>a<li>B</ul>"),
        ("html", "<li translate=no>a<ul><li>b</ul>c</li><p>d", "D", "0-0", "<li translate=no>a<ul><li>b</ul>c</li><p>D"),
        ("html", "<ul><li translate=no>a</ul>b", "B", "0-0", "<ul><li translate=no>a</ul>B"),
        ("html", "<select><option translate=no>a<option>b</select>", "B", "0-0", "<select><option translate=no>a<option>B</select>"),
        ("html", "<button><p translate=no>a</button>b", "B", "0-0", "<button><p translate=no>a</button>B"),
        ("html", "<table><tbody translate=no><tr><td>a<tbody><td>b</table>", "B", "0-0", "<table><tbody translate=no><tr><td>a<tbody><td>B</table>"),
        ("html", "<p translate=no>a<br>c<br/>c<!-- </p> --></p>b", "B", "0-0", "<p translate=no>a<br>c<br/>c<!-- </p> --></p>B"),
        ("html", "<p translate=no>a<b>c</b><p>b", "B", "0-0", "<p translate=no>a<b>c</b><p>B"),
        ("html", "<tr><td translate=no>a<table><td>b</table>c<td>d", "D", "0-0", "<tr><td translate=no>a<table><td>b</table>c<td>D"),
        ("html", "<tr translate=no><td>a<td>b<tr><td>c", "C", "0-0", "<tr translate=no><td>a<td>b<tr><td>C"),
        ("html", "<img translate='no'> <b translate='yes'>a</b>", "A", "0-0", "<img translate='no'> <b translate='yes'>A</b>"),
    ],
)  # fmt: skip
def test_tags_stand_where_the_aligned_words_do(kind, source, translation, links, expected):
    pairs = [tuple(map(int, link.split("-"))) for link in links.split()]
    assert restored(source, kind, translation, pairs) == expected


@pytest.mark.parametrize(
    ("source", "segments", "expected"),
    [
        ("<p>a b</p><p>c</p>", "a b|c", None),
        ("<ul>\n <li>\n a\n</li>\n <li>b</li></ul>", "a|b", None),
        ("<table><tr><td>a<td><b>b</b></tr></table>", "a|b", None),
        ("<H1>a</H1>b <br/>c<hr> d", "a|b|c|d", None),
        ("<div>a <b>\n<p>b</p></b></div>\n", "a|b", None),
        ("a\n<b\n>b</b>\r\n\t<i>c</i> &nbsp;", "a b c", "a <b\n>b</b> <i>c</i> \u00a0"),
        ("<pre>\na\n b</pre> c", "a|b|c", None),
        ("<td>&nbsp;</td> <td>a</td><td>\u00a0 &#160;</td><td><b>b</b>\u00a0</td>", "a|b", None),
        ("a <b>b</b>&nbsp;<i>c</i>", "a b\u00a0c", "a <b>b</b>\u00a0<i>c</i>"),
    ],
)
def test_blocks_of_html_are_sentences_and_its_line_breaks_are_spaces(source, segments, expected):
    marked = parse_markup(source, "html")
    split = split_text(marked.text, count_tokens=len, limit=None, language="en")
    assert "|".join(split.segments) == segments
    translation = split.join(split.segments)
    links = [(word, word) for word in range(len(translation.split()))]
    assert restored(source, "html", translation, links) == (expected or source)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (9000 * "<p>a </p> ", None),
        (9000 * "<b>" + "a" + 9000 * "</b>", None),
        (9000 * "<b>a " + "a" + 9000 * "</b>", None),
        (9000 * "<a>" + 9000 * "</b>", None),
        (9000 * "<b>a a</b> ", None),
        (9000 * "<b ", 9000 * "&lt;b "),
        (9000 * '<b "' + "\"'>", 9000 * '&lt;b "' + "\"'&gt;"),
        (9000 * "<!--", 9000 * "&lt;!--"),
        (f"&#{5000 * '9'}; &#{5000 * '0'}65;", "\ufffd A"),
        ("&#١٢٣٤٥٦٧٨٩٠ x", "&amp;#١٢٣٤٥٦٧٨٩٠ x"),
        ("a<b <i title='x>y'>c</i>", "a&lt;b <i title='x>y'>c</i>"),
    ],
    ids=lambda value: f"{value}"[:12],
)
def test_markup_of_any_depth_and_length_is_read(source, expected):
    """No recursion ends it, and what nothing closes is text."""
    text = parse_markup(source, "html").text
    links = [(word, word) for word in range(len(text.split()))]
    assert restored(source, "html", text, links) == (expected or source)
    assert len(restored(source, "html", text, [])) == len(expected or source)


PAGE = """<!DOCTYPE html>
<html>
<script>
if (a < b) { two(); }
</script>
<p class="x"
   id="y">two</p>
<!-- a
 comment -->
</html>
"""


def test_a_page_is_one_text(folder, tmp_path, capsys):
    (tmp_path / "page.html").write_text(f"\ufeff{PAGE}")
    words = f"translate --model {folder} --quiet --input {tmp_path}/page.html"
    assert main(f"{words} --markup html --output {tmp_path}/out.html".split()) == 0
    [(before, after)] = re.findall(r"(?s)(.*<p[^>]*>).*(</p>.*)", PAGE)
    written = (tmp_path / "out.html").read_text()
    assert re.sub(r"\s+", "", written).startswith(re.sub(r"\s+", "", before))
    assert re.sub(r"\s+", "", written).endswith(re.sub(r"\s+", "", after))
    assert "if (a < b) { two(); }\n" in written
    assert Page(PAGE).written(1, "<p>zwei</p>\r\n") == "<p>zwei</p>\r\n"
    assert main(words.split()) == 2
    assert "page.html is a page: add --markup html" in capsys.readouterr().err
    assert main(f"{words} --markup html --n_best 2".split()) == 2
    assert "with no line for each text: leave out --n_best" in capsys.readouterr().err
