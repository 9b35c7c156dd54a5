# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The command `csan-hf`: its table of subcommands, and how every command reads its arguments and
ends.

It lies beside the package and imports csan_hf only where a command needs it, so that help and lists
come at once."""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib.metadata
import importlib.util
import inspect
import os
import runpy
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

BAD_INPUT = 2
INTERRUPTED = 128 + 2  # SIGINT, by the shell's convention
BROKEN_PIPE = 128 + 13  # SIGPIPE
USAGE = """usage: csan-hf [--import MODULE] COMMAND ...

--import, ahead of the command, takes files or modules that register locality methods or metrics of your own."""
# variable of the environment: what --import names, for the processes that a command starts
IMPORTS = "CSAN_HF_IMPORT"

COMMANDS = {
    "train": (
        "train:main",
        "train what a recipe describes, score it and write its card; the same command resumes",
    ),
    "evaluate": ("evaluate:evaluate", "score a checkpoint on a test set"),
    "translate": ("translate:translate", "translate lines"),
    "align": ("align:align", "find the source words that each word of a translation comes from"),
    "report": ("compare:report", "compare systems in one page for the browser"),
    "compare": (
        "compare:compare",
        "train and compare the systems of a suite over data sets and seeds; the same command "
        "resumes",
    ),
    "convert": (
        "checkpoints:convert",
        "convert a Marian, M2M100, NLLB, BART or mBART checkpoint to a CSAN",
    ),
    "convert-attn2d": (
        "checkpoints:convert_attn2d",
        "convert a checkpoint of the Pervasive Attention authors' code",
    ),
    "export-ct2": ("checkpoints:export_ctranslate2", "write a plain Transformer for CTranslate2"),
    "export-onnx": ("checkpoints:export_onnx", "write a checkpoint as ONNX graphs"),
    "push": ("checkpoints:push", "upload a checkpoint to the Hub"),
    "recipes": (
        "csan_hf_cli:recipes",
        "list the recipes and suites that come with csan_hf, or copy one",
    ),
    "demo": ("demo:demo", "translate in the browser, compare two models, click for the alignment"),
}
"""Subcommands: the function of each, in a module of csan_hf.commands, and what it does."""

OPTIONS = {
    "model": "checkpoint folder or Hub name",
    "source_lang": "language of the sources, where the model has several, in the model's code: de, deu_Latn",
    "target_lang": "language of the translations, likewise",
    "num_beams": "beams (default: the model's)",
    "max_length": "most target tokens (default: the model's)",
    "max_new_tokens": "most target tokens that are generated, instead of max_length",
    "length_penalty": "above 0 favours long outputs (default: the model's)",
    "truncation": "cut a text that is longer than the model takes, instead of splitting it into sentences",
    "max_batch_tokens": "source tokens in a batch",
    "device": "cpu, cuda, cuda:1... (default: the accelerator if there is one)",
    "dtype": "numbers that the model computes with",
    "trust_remote_code": "run model code from the checkpoint",
    "quiet": "no progress bar",
}
"""Help of the options that several commands share, for those that do not describe them."""


def script(
    errors: Mapping[type[Exception], int] | None = None,
) -> Callable[[Callable], Callable[..., int]]:
    """Makes a function end as Unix tools do, with an exit status and one line on standard error at
    most.

    Input or output that cannot be read, written or understood (OSError, ValueError) and packages
    that are not installed (ImportError) give one line and status 2, as do further `errors` with a
    status of theirs. If the reader of standard output leaves (`| head`), the script ends silently.
    Ctrl-C gives one line, with the arguments of the KeyboardInterrupt, and status 130. The function
    may return None for 0."""
    statuses: dict[type[Exception], int] = {
        **(errors or {}),
        **dict.fromkeys((OSError, ValueError, ImportError), BAD_INPUT),
    }

    def decorate(main: Callable) -> Callable[..., int]:
        @functools.wraps(main)
        def run(*arguments: Any, **options: Any) -> int:
            try:
                status = main(*arguments, **options) or 0
                print(end="", flush=True)
                return status
            except BrokenPipeError:
                _discard_output()
                return BROKEN_PIPE
            except KeyboardInterrupt as stop:
                print(" ".join(["Interrupted.", *map(str, stop.args)]), file=sys.stderr)
                return INTERRUPTED
            except tuple(statuses) as error:
                _discard_output()
                # Of several processes, which all meet the same bad input, one says so
                if not isinstance(error, ValueError) or os.environ.get("LOCAL_RANK", "0") == "0":
                    print(f"error: {_one_line(error)}", file=sys.stderr)
                return next(status for kind, status in statuses.items() if isinstance(error, kind))

        return run

    return decorate


def _one_line(error: Exception) -> str:
    """What an error says, without what a terminal would obey."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        text = f"{os.fsdecode(error.filename)}: {error.strerror}"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text.split()))


def _discard_output() -> None:
    """Discards what standard output cannot write, so that Python does not try again when it exits."""
    try:
        print(end="", flush=True)
    except OSError:
        with contextlib.suppress(OSError), open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


# ---- a function's signature as a command line


def build_parser(function: Callable, prog: str | None = None) -> Any:
    """Builds the `jsonargparse.ArgumentParser` of a function from its signature, with types, and
    its docstring.

    Positional-only parameters are positional arguments, all others are options; a `bool` is a flag,
    and a list takes one value or more. Help is the docstring's, or that of `OPTIONS`."""
    import argparse

    import docstring_parser
    import jsonargparse

    text = inspect.getdoc(function) or ""
    parser = jsonargparse.ArgumentParser(
        prog=prog,
        description=_folded(text.split("\n\nArgs:\n")[0]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        exit_on_error=False,
        allow_abbrev=True,
    )
    described = OPTIONS | {
        entry.arg_name: entry.description or "" for entry in docstring_parser.parse(text).params
    }
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        kind, default = parameter.annotation, parameter.default
        if isinstance(kind, types.UnionType):
            [kind] = [each for each in typing.get_args(kind) if each is not type(None)]
        is_positional, is_required = (
            parameter.kind is parameter.POSITIONAL_ONLY,
            default is parameter.empty,
        )
        settings: dict[str, Any] = {"help": described[name].replace("%", "%%")}
        if kind is bool:
            settings["action"] = "store_true"
        elif typing.get_origin(kind) is list:
            action = {} if is_positional else {"action": "extend"}
            settings |= {"type": typing.get_args(kind)[0], "nargs": "+", **action}
        else:
            settings |= {
                "type": kind,
                **({"nargs": "?"} if is_positional and not is_required else {}),
            }
        if not is_required:
            settings["default"] = default
            if default not in (None, False, ""):
                settings["help"] += f" (default: {default})"
        elif not is_positional:
            settings["required"] = True
        parser.add_argument(name if is_positional else f"--{name}", **settings)
    return parser


def _folded(text: str) -> str:
    """Folds paragraphs to the width of a terminal; indented ones are commands."""
    blocks = text.split("\n\n")
    return "\n\n".join(
        block if block.startswith(" ") else textwrap.fill(block, 79) for block in blocks
    )


def _listed(entries: Mapping[str, str]) -> list[str]:
    """Lines of names and what they are, the latter folded in their own column, or below where a
    name is long.
    """
    width, lines = min(max(map(len, entries)), 16), []
    for name, text in entries.items():
        lines += [f"  {name}"] * (len(name) > width)
        head = f"  {name:<{width}}  " if len(name) <= width else " " * (width + 4)
        lines += textwrap.wrap(text, 79, initial_indent=head, subsequent_indent=" " * (width + 4))
    return lines


@script()
def run(function: Callable, words: Sequence[str], prog: str | None = None) -> int | None:
    """Runs a function with the arguments of a command line, which the help names `prog`: see
    `build_parser`.

    Where the function takes `**fields`, every unknown `--name value ...` is one of them, whose
    values are YAML. A function of `arguments` alone gets the words as they are."""
    import argparse

    parameters = inspect.signature(function).parameters
    if list(parameters) == ["arguments"]:
        return function(list(words))
    parser = build_parser(function, prog)
    fields: dict[str, Any] = {}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        words, fields = _split_fields(words)
    try:
        options = parser.parse_args(list(words)).as_dict()
    except argparse.ArgumentError as error:
        raise ValueError(f"{error} ({parser.prog} --help lists the arguments)") from error
    except SystemExit:  # after the help
        return 0
    names = [
        name
        for name, parameter in parameters.items()
        if parameter.kind is parameter.POSITIONAL_ONLY
    ]
    return function(*[options.pop(name) for name in names], **options, **fields)


def _split_fields(words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Takes `--name value ...` and `--name=value` out of a command line; several values make a
    list, none is true.
    """
    import yaml

    others: list[str] = []
    fields: dict[str, list[Any]] = {}
    values = others
    for word in words:
        if word.startswith("--") and word != "--help":
            name, *value = word[2:].split("=", 1)
            fields[name] = [yaml.safe_load(each) for each in value]
            values = others if value else fields[name]
        else:
            values.append(word if values is others else yaml.safe_load(word))
    return others, {
        name: values if len(values) > 1 else (*values, True)[0] for name, values in fields.items()
    }


# ---- csan-hf


def recipes(name: str | None = None, /, *, output: Path | None = None) -> None:
    """List the recipes and suites that come with csan_hf, or copy one for changes.

        csan-hf recipes
        csan-hf recipes multi30k_csan_2d --output my_recipe.yaml

    `csan-hf train NAME` runs a recipe by its name, `csan-hf compare NAME` a suite: several systems
    over one recipe.

    Args:
        name: recipe or suite to print or copy (default: list all)
        output: new file for the copy
    """
    package = Path(str(importlib.util.find_spec("csan_hf").origin)).parent  # type: ignore[union-attr]
    recipes = runpy.run_path(
        str(package / "recipes" / "__init__.py")
    )  # alone: the package imports torch
    kinds = [recipes["RECIPES"], recipes["SUITES"]]
    if name is None:
        for title, files in zip(("Recipes:", "\nSuites:"), kinds, strict=True):
            print(title, *_listed({each: files.title(each) for each in files.names()}), sep="\n")
        return
    files = next((files for files in kinds if name in files.names()), None)
    if files is None:
        hint = recipes["nearest"](name, [each for files in kinds for each in files.names()])
        raise ValueError(f"There is no recipe or suite {name}.{hint} `csan-hf recipes` lists them.")
    text = files.file(name).read_text(encoding="utf-8")
    if output is None or str(output) == "-":
        print(text, end="")
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    with open(output, "x", encoding="utf-8") as copy:
        copy.write(text)
    print(f"{output}: {files.title(name)}")
    if files.kind == "recipe":
        print(
            "With other data, change name, description, license, dataset_name and hub_dataset: "
            "the card says them."
        )


@script()
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a subcommand, `arguments` being its name and its arguments (None = those of the
    process).
    """
    if (
        "OMP_WAIT_POLICY" not in os.environ
    ):  # a thread that waits long for a core which others use slows all down
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    words = list(sys.argv[1:] if arguments is None else arguments)
    modules = os.environ.get(IMPORTS, "").split(",")
    while words and words[0].partition("=")[0] == "--import":
        value = words.pop(0).partition("=")[2] or (words.pop(0) if words else "")
        modules += value.split(",")
    if any(modules):
        importlib.import_module("csan_hf.own_code").import_modules(modules)
    name, *rest = words or ["--help"]
    if name in ("-h", "--help"):
        lines = _listed({command: text for command, (_, text) in COMMANDS.items()})
        print(USAGE, "", *lines, "", "csan-hf COMMAND --help lists its options.", sep="\n")
        return 0 if words else BAD_INPUT
    if name == "--version":
        print(importlib.metadata.version("csan_hf"))
        return 0
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else "csan-hf --help lists them"
        raise ValueError(f"there is no command {name!r}: {hint}")
    return run(function_of(name), rest, f"csan-hf {name}")


def function_of(command: str) -> Callable:
    """Returns the function of a subcommand."""
    module, function = COMMANDS[command][0].split(":")
    place = module if module == __name__ else f"csan_hf.commands.{module}"
    found: Callable = getattr(importlib.import_module(place), function)
    return found
