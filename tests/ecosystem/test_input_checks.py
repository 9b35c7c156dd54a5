# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The two copies of the input checks are one text: each model folder must load alone."""

from pathlib import Path

import csan_hf


def test_both_families_check_alike():
    package = Path(csan_hf.__file__).parent
    copies = [(package / folder / "input_checks.py").read_text() for folder in ("csan", "pervasive_attention")]
    assert copies[0] == copies[1]
