# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""scripts/kill_and_resume.py tells a run that ignores a signal from one that had ended."""

import os
import runpy
import signal
import time
from pathlib import Path

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "kill_and_resume.py"))


def ignore(arguments):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(1, b"here")
    time.sleep(0.3)
    return 0


def obey(arguments):
    os.write(1, b"here")
    time.sleep(60)


def end(arguments):
    os.write(1, b"here")
    return 0


def start(train, tmp_path):
    run = SCRIPT["Run"](train, [], tmp_path, tmp_path / "log")
    assert run.wait_until(lambda: "here" in run.text())
    return run


def test_a_run_that_goes_on_in_spite_of_a_signal_is_an_error(tmp_path):
    with pytest.raises(SCRIPT["IgnoredSignalError"], match="ended with status 0 in spite of SIGTERM"):
        start(ignore, tmp_path).signal_group(signal.SIGTERM)


def test_a_run_that_a_signal_ends_and_one_that_had_ended_are_told_apart(tmp_path):
    assert start(obey, tmp_path).signal_group(signal.SIGTERM)
    run = start(end, tmp_path)
    while SCRIPT["ENDED"] not in run.text():
        time.sleep(0.01)
    assert not run.signal_group(signal.SIGTERM)
