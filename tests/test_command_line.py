# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""How scripts end: one line, or silently as Unix tools do; never with a traceback."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from csan_hf.command_line import script
from csan_hf.commands import COMMANDS

ROOT = Path(__file__).parents[1]


class TroubleError(Exception):
    pass


ENDINGS = {
    "file that is not there": (FileNotFoundError(errno.ENOENT, "No such file or directory", "x.txt"), 2, "x.txt: No"),
    "folder": (IsADirectoryError(errno.EISDIR, "Is a directory", b"x"), 2, "error: x: Is a directory"),
    "bad value": (
        ValueError("num_beams must be at least 1,\n  got 0"),
        2,
        "error: num_beams must be at least 1, got 0",
    ),
    "full disk": (OSError(errno.ENOSPC, "No space left on device"), 2, "No space left on device"),
    "codes for the terminal": (ValueError("no \x1b]0;x\x07 \u202ey"), 2, r"error: no \x1b]0;x\x07 \u202ey"),
    "named error": (TroubleError("no"), 7, "error: no"),
    "Ctrl-C": (KeyboardInterrupt(), 130, "Interrupted."),
    "Ctrl-C with a word": (KeyboardInterrupt("3 lines are written."), 130, "Interrupted. 3 lines are written."),
}


@pytest.mark.parametrize(("error", "status", "text"), ENDINGS.values(), ids=ENDINGS)
def test_an_error_is_one_line(error, status, text, capsys):
    @script({TroubleError: 7})
    def main(arguments):
        raise error

    assert main([]) == status
    told = capsys.readouterr().err
    assert text in told
    assert told.count("\n") == 1


def test_what_is_not_expected_is_not_hidden():
    @script()
    def main(arguments):
        raise KeyError("a mistake of ours")

    with pytest.raises(KeyError):
        main([])


def test_arguments_and_status_are_passed_on():
    assert script()(lambda arguments: int(arguments[0]))(["3"]) == 3
    assert script()(lambda arguments: None)([]) == 0


def test_of_several_processes_one_says_what_was_given_to_all(monkeypatch, capsys):
    monkeypatch.setenv("LOCAL_RANK", "1")

    @script()
    def main(arguments):
        raise arguments[0]

    assert main([ValueError("same for all")]) == 2
    assert main([OSError("only mine")]) == 2
    assert capsys.readouterr().err == "error: only mine\n"


def test_a_reader_that_leaves_ends_it_silently(monkeypatch, capsys):
    end, start = os.pipe()
    os.close(end)

    @script()
    def main(arguments):
        print("line")

    with open(start, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main([]) == 141
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_device_is_one_line(monkeypatch, capsys):
    @script()
    def main(arguments):
        print("line")

    with open("/dev/full", "w") as device:
        monkeypatch.setattr(sys, "stdout", device)
        assert main([]) == 2
    assert capsys.readouterr().err == "error: [Errno 28] No space left on device\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_help_that_cannot_be_printed_is_one_line(monkeypatch, capsys):
    @script()
    def main(arguments):
        print("usage")
        raise SystemExit(0)  # as argparse

    with open("/dev/full", "w") as device:
        monkeypatch.setattr(sys, "stdout", device)
        assert main([]) == 2
    assert capsys.readouterr().err == "error: [Errno 28] No space left on device\n"
    monkeypatch.undo()
    with pytest.raises(SystemExit):
        main([])


@pytest.mark.parametrize("output", ["prints", "is silent"])
def test_closed_output_is_an_error_only_if_something_is_printed(output, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", None)

    @script()
    def main(arguments):
        if output == "prints":
            print("line")

    assert main([]) == (2 if output == "prints" else 0)
    sys.stdout.close()
    assert capsys.readouterr().err == ("error: [Errno 9] Bad file descriptor\n" if output == "prints" else "")


def test_python_adds_nothing_at_its_end():
    """In a process of its own, whose streams Python flushes once more when it exits."""
    code = (
        "import runpy, sys\n"
        f"script = runpy.run_path({str(ROOT / 'csan_hf' / 'command_line.py')!r})['script']\n"
        "sys.exit(script()(lambda arguments: print('line'))([]))\n"
    )
    python = f'"{sys.executable}" -c "$CODE"'
    shell = f"{python} | true; echo ${{PIPESTATUS[0]}}; {python} >/dev/full; echo $?; {python} >&-; echo $?"
    done = subprocess.run(
        ["bash", "-c", shell], capture_output=True, text=True, check=True, env={**os.environ, "CODE": code}
    )
    pipe, full, closed = done.stdout.split()
    assert pipe in ("0", "141")  # 0: it had written before the reader left
    assert (full, closed) == ("2", "2")
    assert done.stderr.splitlines() == [
        "error: [Errno 28] No space left on device",
        "error: [Errno 9] Bad file descriptor",
    ]


COMMAND_FILES = [ROOT / "csan_hf" / "commands" / f"{name.replace('-', '_')}.py" for name in COMMANDS]


@pytest.mark.parametrize(
    "path", [*COMMAND_FILES, *sorted((ROOT / "scripts").glob("*.py"))], ids=lambda path: path.name
)
def test_every_command_and_script_ends_so(path):
    text = path.read_text(encoding="utf-8")
    if "__main__" in text or path in COMMAND_FILES:
        assert "\n@script(" in text or "import main\n" in text
    if path not in COMMAND_FILES and "__main__" in text:
        assert text.endswith('if __name__ == "__main__":\n    sys.exit(main(sys.argv[1:]))\n')
