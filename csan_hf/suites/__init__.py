# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The suites that come with the package: systems over one recipe in one commented YAML file each, found by name."""

from pathlib import Path

from csan_hf.recipes import NamedFiles

SUITES = NamedFiles(Path(__file__).parent, "suite")
