# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Suites that train by a stub."""

import sys
from pathlib import Path

import pytest

from csan_hf.lab.suites import schedule


@pytest.fixture(autouse=True)
def stub_of_training(monkeypatch):
    """Runs are finished by a stub, which is looked at often."""
    monkeypatch.setattr(
        schedule, "COMMAND", (sys.executable, f"{Path(__file__).parent}/stub_trainer.py")
    )
    monkeypatch.setattr(schedule, "INTERVAL", 0.02)
