# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The library evaluate, which a script of that name would hide."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any


def import_evaluate() -> Any:
    """Imports the library evaluate, also where an `evaluate.py` lies beside the script, as in csan_hf's own folder.

    Python looks for modules in the folder of the script first and would take the script for the library.
    """
    path = list(sys.path)
    if "evaluate" not in sys.modules:
        sys.path[:] = [folder for folder in path if not (Path(folder) / "evaluate.py").is_file()]
    try:
        return importlib.import_module("evaluate")
    finally:
        sys.path[:] = path
