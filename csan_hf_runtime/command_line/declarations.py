# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Signatures and fields as help shows them, read from source without running its imports, which
take seconds.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
import types
import typing
from pathlib import Path
from typing import Any

_INDENT = " " * 6


def declaration(file: Path, name: str) -> Any:
    """Returns a function with nothing but its signature and docstring, or a class with nothing but
    its docstring and fields.

    Of the module's imports only those run whose names the declaration uses."""
    module = ast.parse(file.read_text(encoding="utf-8"))
    definitions = [node for node in module.body if getattr(node, "name", None) == name]
    [definition] = definitions
    if isinstance(definition, ast.ClassDef):
        definition.body = [
            node for node in definition.body if isinstance(node, ast.Expr | ast.AnnAssign)
        ]
    elif isinstance(definition, ast.FunctionDef):
        definition.body = definition.body[:1]
    names = {node.id for node in ast.walk(definition) if isinstance(node, ast.Name)}
    imports = [node for node in module.body if _imports(node, names)]
    program = ast.Module(body=[*imports, definition], type_ignores=[])
    namespace: dict[str, Any] = {"__name__": file.stem}
    code = compile(program, str(file), "exec", dont_inherit=True)  # nor this file's __future__
    exec(code, namespace)
    return namespace[name]


def _imports(node: ast.stmt, names: set[str]) -> bool:
    """Whether a statement is `from module import name`, of one of the names."""
    return isinstance(node, ast.ImportFrom) and any(alias.name in names for alias in node.names)


def union_members(annotation: object) -> tuple[Any, ...]:
    """Returns the members of a union, or the type alone."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if is_union else (annotation,)


def type_name(annotation: object) -> str:
    """Returns a type for people, without modules, with YAML's null: `int | null`, `list[int]`."""
    names = [
        "null" if member is types.NoneType else inspect.formatannotation(member)
        for member in union_members(annotation)
    ]
    names.sort(key="null".__eq__)  # null last
    return re.sub(r"(\w+\.)+", "", " | ".join(names))


def option_text(name: str, annotation: object, default: object, help: str, *facts: str) -> str:
    """Returns the lines that explain a key of a recipe, with its default as YAML, and `facts`."""
    facts = (type_name(annotation), f"default {json.dumps(default)}", *facts)
    head = textwrap.fill(
        f"  --{name}  ({'; '.join(facts)})", 79, subsequent_indent=_INDENT, break_on_hyphens=False
    )
    return f"{head}\n" + textwrap.fill(help, 79, initial_indent=_INDENT, subsequent_indent=_INDENT)
