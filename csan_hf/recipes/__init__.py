# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The recipes that come with the package: one commented YAML file for each experiment, found by name."""

from pathlib import Path

from csan_hf.named_files import NamedFiles

RECIPES = NamedFiles(Path(__file__).parent, "recipe")
