# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The command `csan-hf`. A subcommand is a file of this package, which is imported when it is called."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Sequence

from csan_hf.command_line import BAD_INPUT, script

COMMANDS = {
    "train": "train what a recipe describes, score it and write its card; the same command resumes",
    "evaluate": "score a checkpoint on a test set",
    "translate": "translate lines",
    "align": "find the source words that each word of a translation comes from",
    "report": "compare systems in one page for the browser",
    "compare": "train and compare the systems of a suite over data sets and seeds; the same command resumes",
    "convert": "convert a Marian, M2M100 or NLLB checkpoint to a CSAN",
    "convert-attn2d": "convert a checkpoint of the Pervasive Attention authors' 2018 code",
    "export-onnx": "write a checkpoint as ONNX graphs",
    "push": "upload a checkpoint to the Hub",
    "recipes": "list the recipes and suites that come with csan_hf, or copy one",
    "demo": "translate in the browser, compare two models, click for the alignment",
}
"""What each subcommand does; its file has the same name, with `_` for `-`."""


def describe_commands() -> str:
    """Returns what `csan-hf --help` prints."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(["usage: csan-hf COMMAND ...", "", *lines, "", "csan-hf COMMAND --help lists its options."])


@script()
def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(describe_commands())
        return 0 if arguments else BAD_INPUT
    name, *rest = arguments
    if name == "--version":
        print(importlib.import_module("csan_hf").__version__)
        return 0
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else "csan-hf --help lists them"
        raise ValueError(f"there is no command {name!r}: {hint}")
    module = importlib.import_module(f"csan_hf.commands.{name.replace('-', '_')}")
    return module.main(rest)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a subcommand.

    Args:
        arguments: Its name and its arguments; None = those of the process.

    Returns:
        The exit status.
    """
    return _dispatch(list(sys.argv[1:] if arguments is None else arguments))
