# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A file that commands read, and how they are run."""

import pytest
from tiny import SENTENCES

from csan_hf_runtime.command_line import main
from csan_hf_runtime.text_files import write_lines


@pytest.fixture
def words(folder, tmp_path):
    """The command that translates a file of the sentences."""
    write_lines(tmp_path / "in", SENTENCES)
    return f"translate --model {folder} --input {tmp_path}/in --quiet"


def run(words):
    """Runs a command of csan-hf; returns its exit code."""
    return main(words.split())
