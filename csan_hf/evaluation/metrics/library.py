# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The library evaluate, which a script of that name would hide."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any


def import_evaluate() -> Any:
    """Imports the library evaluate, also in a script that stands beside an `evaluate.py`, as those of csan_hf do.

    Python looks for modules in the folder of the script first and would take the script for the library.
    """
    first = sys.path[0] if sys.path else ""
    if "evaluate" in sys.modules or not (Path(first) / "evaluate.py").is_file():
        return importlib.import_module("evaluate")
    sys.path.pop(0)
    try:
        return importlib.import_module("evaluate")
    finally:
        sys.path.insert(0, first)
