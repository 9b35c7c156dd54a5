# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Nothing is left half-written, nothing is replaced but regular files, and line n of a text is read
as line n.
"""

import bz2
import gzip
import hashlib
import itertools
import json
import lzma
import os
import stat
import sys
import time
from functools import partial

import pytest

from csan_hf_runtime.text_files import (
    check_file_name,
    check_writable,
    digest_of_lines,
    open_for_writing,
    open_lines,
    partial_name,
    path_inside,
    read_lines,
    read_lines_as_they_come,
    write_json,
    write_lines,
    write_text,
)


def test_what_cannot_be_written_is_known_before_anything_is_written(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.touch()
    for place in (file, tmp_path / "new/folder/file", "/dev/null", "/dev/stdout", "-"):
        check_writable(place)
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        check_writable(tmp_path)
    with pytest.raises(NotADirectoryError, match=f"{file}/x"):
        check_writable(file / "x")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(PermissionError):
        check_writable(tmp_path / "new/file")
    for end in os.pipe():
        with os.fdopen(end):
            check_writable(f"/dev/fd/{end}")
    assert os.listdir(tmp_path) == ["file"]


def test_one_line_is_one_sentence(tmp_path):
    path = tmp_path / "deep/lines.txt"
    write_lines(path, ["a\nb", "", "ä\u2028c"])
    assert path.read_bytes() == "a b\n\nä c\n".encode()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert digest_of_lines(["a\r\nb", "", "ä\u2028c"]) == digest
    write_json(path, {"ä": [1.5, None]})
    assert json.loads(path.read_text(encoding="utf-8")) == {"ä": [1.5, None]}


def test_links_are_followed_and_permissions_are_those_of_the_umask_or_of_the_file_before(tmp_path):
    write_text(tmp_path / "there.txt", "old")
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "new", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    os.chmod(tmp_path / "there.txt", 0o604)
    for number, target in enumerate(("/dev/null", "there.txt", "not/there/yet.txt")):
        link = tmp_path / f"link {number}"
        link.symlink_to(target)
        write_text(link, "new")
        assert link.is_symlink()
        assert link.read_text() == ("" if target == "/dev/null" else "new")
    assert stat.S_IMODE((tmp_path / "there.txt").stat().st_mode) == 0o604


def test_neither_a_link_nor_a_name_leads_out_of_a_folder(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "evaluation").symlink_to(tmp_path)
    (model / "scores.json").symlink_to("/etc/passwd")
    for name in ("evaluation", "scores.json"):
        with pytest.raises(ValueError, match="is a link that leads out of"):
            path_inside(model, name)
    for name in ("../x", *(f"a{character}b" for character in "\x1b\x9b\u202e\u2067\u2028\ud800")):
        with pytest.raises(ValueError, match="cannot be the name of a file"):
            path_inside(model, name)
    assert check_file_name("سرب\u200cی 日本語", "the system")
    link = tmp_path / "link"
    link.symlink_to(model)
    assert path_inside(link, "hypotheses", "test.txt") == link / "hypotheses/test.txt"


def test_a_failed_write_leaves_the_old_file_and_half_a_file_has_another_name(tmp_path):
    path = tmp_path / "out"
    write_text(path, "old")

    def write(text):
        with open_for_writing(path, keep_partial=True) as file:
            file.write(text)
            raise KeyboardInterrupt

    with pytest.raises(UnicodeEncodeError):
        write_lines(path, ["new", "\ud800"])
    assert os.listdir(tmp_path) == ["out"]
    with pytest.raises(KeyboardInterrupt):
        write("half")
    assert partial_name(path).read_text() == "half"
    again = open_for_writing(path, keep_partial=True)
    with pytest.raises(ValueError, match="if that was stopped, go on with --resume"), again:
        pass
    assert partial_name(path).read_text() == "half"
    partial_name(path).unlink()
    with pytest.raises(KeyboardInterrupt):
        write("")
    assert os.listdir(tmp_path) == ["out"], "nothing was written, nothing is kept"
    assert path.read_text() == "old"


@pytest.mark.parametrize("kept_lines", [None, 0, 1])
def test_half_a_file_is_one_process_s_and_no_link(kept_lines, tmp_path):
    path = tmp_path / "out"
    (tmp_path / "other").write_text("old\n")
    partial_name(path).symlink_to(tmp_path / "other")
    again = partial(open_for_writing, path, keep_partial=True, kept_lines=kept_lines)
    with pytest.raises(ValueError, match=r"out\.partial is a link or no file"), again():
        pass
    partial_name(path).unlink()
    pytest.importorskip("fcntl")
    with open_for_writing(path, keep_partial=True) as file:
        file.write("new\n")
        file.flush()
        with pytest.raises(ValueError, match=r"Another process is writing .*out\.partial"), again():
            pass
    assert path.read_text() == "new\n"
    assert (tmp_path / "other").read_text() == "old\n"
    if kept_lines:
        with pytest.raises(FileNotFoundError), again():
            pass
        partial_name(path).write_text("half")
        with pytest.raises(ValueError, match=r"out\.partial has lost lines"), again():
            pass


# ---- reading


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "cut.gz",
            gzip.compress(b"line\n" * 1000, mtime=0)[:-10],
            r"cut\.gz, after line \d+: the compressed file is damaged",
        ),
        (
            "cut",
            bz2.compress(b"line\n")[:-9],
            r"cut, after line \d: the compressed file is damaged",
        ),
        ("plain.gz", b"plain", r"plain\.gz, after line 0: the compressed file is damaged"),
        ("plain.BZ2", b"plain", r"plain\.BZ2, after line 0: the compressed file is damaged"),
        ("plain.xz", b"plain", r"plain\.xz, after line 0: the compressed file is damaged"),
        ("a.srt", b"1\r\n00:00:01,000 --> 00:00:02,500\r\nHi.\r\n", r"a\.srt: subtitles, whose"),
        (
            "a.vtt",
            gzip.compress(
                b"\xef\xbb\xbfWEBVTT - Hi\nKind: captions\n\n00:01.000 --> 00:02.500\n", mtime=0
            ),
            r"a\.vtt: subtitles, whose",
        ),
        ("bomb", lzma.compress(b"fine\n" + bytes(5000)), r"bomb, line 2: longer than 4,096 bytes"),
        ("latin", b"fine\n\nM\xfcnchen\n", r"latin, line 3: not UTF-8 \(byte 0xfc at position 2\)"),
    ],
)
def test_a_damaged_file_is_refused_with_its_place(name, content, message, tmp_path, monkeypatch):
    monkeypatch.setattr("csan_hf_runtime.text_files._LONGEST_LINE", 4096)
    (tmp_path / name).write_bytes(content)
    for read in (open_lines, lambda path: list(read_lines(path))):
        with pytest.raises(ValueError, match=message):
            read(tmp_path / name)


@pytest.fixture
def program(monkeypatch):
    """The end of a pipe that writes to standard input."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as stdin, os.fdopen(writing, "wb", buffering=0) as program:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield program


def test_standard_input_is_read_as_files_are_and_line_by_line(program):
    program.write("\ufeffä\r\n\nlast\r\n".encode() + b"fine\n\xff\n")
    lines = read_lines("-")
    assert [next(lines) for _ in range(3)] == ["ä", "", "last"]
    program.close()
    with pytest.raises(ValueError, match="standard input, line 5: not UTF-8"):
        list(lines)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (b"1\n", b"00:00:01,000 --> 00:00:02,500\n", "standard input: subtitles"),
        (gzip.compress(b"fine\n", mtime=0), b"junk", "standard input, after line 1: .* damaged"),
        (b"WEBVTT is a format.\n", b"\xff", "standard input, line 2: not UTF-8"),
    ],
    ids=["subtitles", "junk", "no subtitles"],
)
def test_what_comes_before_a_fault_is_read(first, second, message, program):
    program.write(first)
    lines = read_lines("-")
    if not first.startswith(b"\x1f"):
        assert next(lines) == first.decode().strip()
    program.write(second)
    program.close()
    with pytest.raises(ValueError, match=message):
        list(lines)


def test_a_steady_writer_is_answered_after_a_while(program, monkeypatch):
    monkeypatch.setattr("csan_hf_runtime.text_files._LONGEST_WAIT", 0.0)
    program.write(b"two\nnine\n")
    lines = read_lines_as_they_come(pause=9)
    assert [next(lines) for _ in range(4)] == ["two", None, "nine", None]
    program.close()
    assert list(lines) == []


def test_a_pause_of_standard_input_is_told(program):
    lines = read_lines_as_they_come(pause=0.01)
    for text in ("two", "nine"):
        program.write(f"{text}\n".encode())
        assert {*itertools.takewhile(text.__ne__, lines)} <= {None}
        assert next(lines) is None
    program.write(b"\xff\n")
    program.close()
    with pytest.raises(ValueError, match="line 3: not UTF-8"):
        list(lines)


@pytest.mark.parametrize(
    ("name", "unpack"),
    [
        ("a.gz", gzip.decompress),
        ("a.GZ", gzip.decompress),
        ("a.bz2", bz2.decompress),
        ("a.xz", lzma.decompress),
    ],
)
def test_text_is_compressed_by_its_name_and_read_by_its_content(name, unpack, tmp_path, program):
    write_lines(tmp_path / name, ["ä", "b"])
    content = (tmp_path / name).read_bytes()
    assert unpack(content) == "ä\nb\n".encode()
    (tmp_path / "text").write_bytes(content)
    program.write(content)
    program.close()
    for path in (tmp_path / name, tmp_path / "text", "-"):
        assert list(read_lines(path)) == ["ä", "b"]
    (tmp_path / name).write_bytes(b"")
    assert list(read_lines(tmp_path / name)) == []


def test_of_a_compressed_file_without_a_line_nothing_is_kept(tmp_path):
    def write(text):
        with open_for_writing(tmp_path / "x.gz", keep_partial=True) as file:
            file.write(text)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write("")
    assert os.listdir(tmp_path) == []
    with pytest.raises(KeyboardInterrupt):
        write("half")
    with pytest.raises(ValueError, match="if that was stopped, remove the file"):
        write("")


def test_half_of_a_compressed_file_is_compressed(tmp_path):
    with open_for_writing(tmp_path / "x.gz", keep_partial=True) as file:
        file.write("half\n")
        file.flush()
        with gzip.open(tmp_path / "x.gz.partial") as file:
            assert file.readline() == b"half\n"


def test_a_compression_that_python_does_not_have_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    (tmp_path / "text").write_bytes(b"\x28\xb5\x2f\xfd")
    with pytest.raises(ValueError, match=r"text: .zst is a compression .*: unpack the file"):
        open_lines(tmp_path / "text")


@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
def test_a_dash_is_standard_output(name, capfdbinary):
    write_lines(name, ["ä", "b"])
    with open_for_writing(name, binary=True) as file:
        file.write(b"\xff")
    assert capfdbinary.readouterr().out == "ä\nb\n".encode() + b"\xff"


def test_only_newlines_end_a_line_and_a_file_is_read_anew(tmp_path):
    text = "\ufeffa\0\u2028b\x0bc\x85\r\n\ufefflone\rreturn\n\nlast".encode()
    (tmp_path / "text").write_bytes(text)
    (tmp_path / "text.gz").write_bytes(gzip.compress(text))
    expected = ["a\0\u2028b\x0bc\x85", "lone\rreturn", "", "last"]
    for name in ("text", "text.gz"):
        lines = open_lines(tmp_path / name)
        assert len(lines) == 4
        for _ in range(2):
            assert list(lines) == list(read_lines(tmp_path / name)) == expected
    with pytest.raises(FileNotFoundError):
        open_lines(tmp_path / "none")


def test_long_lines_are_read_ahead_up_to_so_many_characters(monkeypatch):
    read = []

    def long_lines(path):
        for number in range(100):
            read.append(number)
            yield "x" * 399

    monkeypatch.setattr("csan_hf_runtime.text_files.read_lines", long_lines)
    monkeypatch.setattr("csan_hf_runtime.text_files._CHARACTERS_AHEAD", 1200)
    lines = read_lines_as_they_come(pause=9)
    assert len(next(lines)) == 399
    time.sleep(0.1)
    assert len(read) <= 5, "the one taken, three that wait and one that has no room"
    assert sum(line is not None for line in lines) == 99
