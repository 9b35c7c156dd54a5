# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Imports point one way, those inside functions and module names in strings included."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("csan_hf", "csan_hf_runtime")
# A folder or file of the package imports only what stands below it; __init__ is the package itself
ORDER = """
    __main__ lab commands training recipes hub evaluation
    __init__ pipelines alignment own_code families data models credentials source_tokenizer command_line csan_hf_runtime
"""
FLOORS = ORDER.split()
EXCEPTIONS = {  # to be emptied
    ("csan_hf/__init__.py", "hub"),  # `convert_marian`
    (
        "csan_hf_runtime/command_line/__init__.py",
        "__init__",
    ),  # of a command that needs it, as it is called
    ("csan_hf/families.py", "hub"),
}


def python_files():
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


def names_in(node, package):
    """The modules that a node imports or names."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        parents = package[: len(package) - node.level + 1] if node.level else ()
        module = ".".join([*parents, *filter(None, [node.module])])
        return [f"{module}.{alias.name}" for alias in node.names]
    is_name = isinstance(node, ast.Constant) and str(node.value).startswith("csan_hf.")
    return [node.value.replace(":", ".")] if is_name and " " not in node.value else []


def floor_of(name):
    if name.startswith("csan_hf_runtime.command_line"):
        return "command_line"
    first, *parts = name.split(".")
    if first != "csan_hf":
        return first
    return parts[0] if parts and parts[0] in FLOORS else "__init__"


@pytest.mark.parametrize(
    "file",
    [*python_files()],
    ids=lambda file: str(file.relative_to(ROOT)),
)
def test_imports_point_down(file):
    path = file.relative_to(ROOT).with_suffix("").parts
    floor = floor_of(".".join(path))
    for node in ast.walk(ast.parse(file.read_text())):
        for imported in map(floor_of, names_in(node, path[:-1])):
            is_above = imported in FLOORS and FLOORS.index(imported) < FLOORS.index(floor)
            assert not is_above or (str(file.relative_to(ROOT)), imported) in EXCEPTIONS, (
                f"{file}:{node.lineno}: {floor} must not import {imported}, which stands above it"
            )
