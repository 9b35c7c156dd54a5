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
    for step in range(1, 6):
        os.write(1, f"step {step}/5\n".encode())
        time.sleep(0.2)
    return 0


def obey(arguments):
    os.write(1, b"step 1/5\n")
    time.sleep(60)


def end(arguments):
    os.write(1, b"step 5/5\n")
    return 0


def start(train, tmp_path):
    run = SCRIPT["Run"](train, [], tmp_path, tmp_path / "log")
    assert run.wait_until(lambda: run.step() > 0)
    return run


def test_a_run_that_goes_on_in_spite_of_a_signal_is_an_error(tmp_path):
    with pytest.raises(SCRIPT["IgnoredSignalError"], match="ended with status 0 in spite of SIGTERM"):
        start(ignore, tmp_path).signal_group(signal.SIGTERM)


def test_a_run_that_a_signal_ends_and_one_that_had_ended_are_told_apart(tmp_path):
    assert start(obey, tmp_path).signal_group(signal.SIGTERM)
    run = start(end, tmp_path)
    run.process.join()
    assert not run.signal_group(signal.SIGTERM)
