# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""scripts/kill_and_resume.py tells a run that ignores a signal from one that had ended."""

import os
import runpy
import signal
import time
from pathlib import Path

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "kill_and_resume.py"))


def train(arguments):
    """Ignores SIGTERM, obeys it, or ends before it comes."""
    if "ignores" in arguments:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for step in range(1, 6):
        os.write(1, f"step {step}/5\n".encode())
        time.sleep(0.2 if "ignores" in arguments else 20 if "obeys" in arguments else 0)
    return 0


def test_a_run_that_ignores_a_signal_one_that_it_ends_and_one_that_had_ended_are_told_apart(tmp_path):
    def start(behaviour):
        run = SCRIPT["Run"](train, [behaviour], tmp_path, tmp_path / behaviour)
        assert run.wait_until(lambda: run.step() > 0)
        return run

    with pytest.raises(SCRIPT["IgnoredSignalError"], match="ended with status 0 in spite of SIGTERM"):
        start("ignores").signal_group(signal.SIGTERM)
    assert start("obeys").signal_group(signal.SIGTERM)
    run = start("ends")
    run.process.join()
    assert not run.signal_group(signal.SIGTERM)
