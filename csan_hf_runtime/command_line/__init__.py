# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The command `csan-hf`: the table of subcommands, how their arguments are read, and how they end.

It lies beside csan_hf and imports it only where a command needs it, so that help, lists and
translation by ONNX Runtime come at once."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import functools
import gc
import importlib
import importlib.util
import inspect
import math
import os
import re
import runpy
import signal
import sys
import textwrap
import traceback
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from csan_hf_runtime import IMPORTS, __version__
from csan_hf_runtime.text_files import printable

from .declarations import declaration

BAD_INPUT = 2
BY_SIGNAL = 128  # plus the number of the signal: the exit status by the shell's convention
BROKEN_PIPE = BY_SIGNAL + 13
USAGE = """usage: csan-hf [--import MODULE] COMMAND ...

--import takes files or modules that register locality methods or metrics \
of your own."""
FULL_PACKAGE = "csan_hf with torch: pip install . in a checkout"
DEBUG = "CSAN_HF_DEBUG"
"""Environment variable that asks for the tracebacks of errors that have one line."""

COMMANDS = {
    "train": (
        "csan_hf_runtime.command_line.train:train",
        "train a model by a recipe, score it and write its card; the same command resumes",
    ),
    "prepare": (
        "commands.train:prepare",
        "tokenize a recipe's corpus before training; list or clear prepared corpora",
    ),
    "evaluate": ("commands.evaluate:evaluate", "score a checkpoint on a test set"),
    "translate": ("csan_hf_runtime.command_line.translate:translate", "translate lines"),
    "align": (
        "commands.align:align",
        "find the source words that each word of a translation comes from",
    ),
    "report": ("lab.commands:report", "compare systems on one page for the browser"),
    "compare": (
        "lab.commands:compare",
        "train and compare a suite's systems across data sets and seeds; the same command resumes",
    ),
    "convert": (
        "commands.checkpoints:convert",
        "convert a Marian, M2M100, NLLB, BART or mBART checkpoint to a CSAN",
    ),
    "export-onnx": ("commands.checkpoints:export_onnx", "export a checkpoint to ONNX"),
    "push": ("commands.checkpoints:push", "upload a checkpoint to the Hub"),
    "recipes": (
        "csan_hf_runtime.command_line:recipes",
        "list the recipes and suites that come with csan_hf, or copy one",
    ),
    "demo": (
        "commands.demo:demo",
        "translate in the browser, compare two models, click for the alignment",
    ),
}
"""Subcommands: the function of each, in csan_hf unless it says so, and what it does."""

OPTIONS = {
    "model": "checkpoint folder or Hub name",
    "source_lang": (
        "source language of a multilingual model, in the code of the model: de, deu_Latn"
    ),
    "target_lang": "target language of a multilingual model, in the code of the model",
    "max_batch_tokens": "source tokens in a batch",
    "device": "cpu, cuda, cuda:1... (default: the GPU if there is one)",
    "trust_remote_code": "run model code from the checkpoint",
    "quiet": "no progress bar",
}
"""Help of the options that several commands share, for those that do not describe them."""


class Stopped(KeyboardInterrupt):
    """A signal that asks a process to end, by its number: SIGTERM or SIGHUP."""

    def __init__(self, number: int, *words: str) -> None:
        super().__init__(*words)
        self.number = number


@contextlib.contextmanager
def stopping_on_signals() -> Iterator[None]:
    """Raises `Stopped` in the block on SIGTERM and SIGHUP, unless they are ignored (`nohup`)."""

    def stop(number: int, frame: types.FrameType | None) -> None:
        raise Stopped(number)

    handlers = {}
    for number in signal.Signals:
        handler = signal.getsignal(number)
        if number.name in ("SIGTERM", "SIGHUP") and handler != signal.SIG_IGN:
            handlers[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def script(
    errors: Mapping[type[Exception], int] | None = None,
) -> Callable[[Callable], Callable[..., int]]:
    """Makes a function end as Unix tools do, with an exit status and at most one line on standard
    error.

    Input or output that cannot be read, written or understood (OSError, ValueError) and packages
    that are not installed (ImportError) give one line and status 2, as do further `errors` with a
    status of theirs. If the reader of standard output leaves (`| head`), the script ends silently.
    Ctrl-C and `Stopped` give one line, with the arguments of the exception, and 128 + the number of
    the signal. The function may return None for 0. With `CSAN_HF_DEBUG=1` a traceback stands before
    an error's line."""
    statuses: dict[type[Exception], int] = dict(errors or {})
    statuses |= dict.fromkeys((OSError, ValueError, ImportError), BAD_INPUT)

    def decorate(main: Callable) -> Callable[..., int]:
        @functools.wraps(main)
        def with_status(*arguments: Any, **options: Any) -> int:
            try:
                status = main(*arguments, **options) or 0
                print(end="", flush=True)
                return status
            except BrokenPipeError:
                _discard_output()
                return BROKEN_PIPE
            except KeyboardInterrupt as stop:
                print(" ".join(["Interrupted.", *map(str, stop.args)]), file=sys.stderr)
                return BY_SIGNAL + getattr(stop, "number", signal.SIGINT)
            except tuple(statuses) as error:
                _discard_output()
                if os.environ.get(DEBUG):
                    traceback.print_exception(error)
                # Of several processes, which all meet the same bad input, one says so
                if not isinstance(error, ValueError) or os.environ.get("LOCAL_RANK", "0") == "0":
                    print(f"error: {_one_line(error)}", file=sys.stderr)
                return next(status for kind, status in statuses.items() if isinstance(error, kind))

        return with_status

    return decorate


def _one_line(error: Exception) -> str:
    """An error's message, without control sequences that a terminal would obey."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        names = [name for name in (error.filename, error.filename2) if name is not None]
        text = f"{' to '.join(map(os.fsdecode, names))}: {error.strerror}"
    return printable(" ".join(text.split()))


def _discard_output() -> None:
    """Redirects standard output if it cannot be written, so that Python's exit does not fail."""
    try:
        print(end="", flush=True)
    except OSError:
        with contextlib.suppress(OSError), open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


# ---- a function's signature as a command line


def build_parser(function: Callable, prog: str | None = None) -> Any:
    """Builds the `jsonargparse.ArgumentParser` of a function from its signature and docstring.

    Positional-only parameters are positional arguments, all others are options; a `bool` is a flag,
    a list takes one value or more, a tuple as many as it has. The fields of a dataclass are options
    each. Help is the docstring's, that of the dataclass, or that of `OPTIONS`."""
    import jsonargparse

    text = inspect.getdoc(function) or ""
    parser = jsonargparse.ArgumentParser(
        prog=prog,
        description=_folded(text.split("\n\nArgs:\n")[0]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        exit_on_error=False,
        allow_abbrev=True,
    )
    helps = OPTIONS | _helps(text)
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        kind = parameter.annotation
        if _is_group(kind):
            helps_of_fields: dict[str, str] = {}
            for base in kind.__mro__:  # fields of a base are described there
                helps_of_fields |= _helps(inspect.cleandoc(base.__doc__ or ""))
            for field, option in inspect.signature(kind, eval_str=True).parameters.items():
                parser.add_argument(f"--{field}", **_argument(option, helps_of_fields[field]))
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            parser.add_argument(name, **_argument(parameter, helps[name]))
        elif parameter.kind is parameter.KEYWORD_ONLY:
            parser.add_argument(f"--{name}", **_argument(parameter, helps[name]))
    return parser


def _is_group(kind: object) -> TypeGuard[type]:
    """Whether a parameter is a dataclass, whose fields are options each."""
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def _helps(docstring: str) -> dict[str, str]:
    """The descriptions of arguments, or attributes, by their names."""
    import docstring_parser

    described = docstring_parser.parse(docstring).params
    return {entry.arg_name: entry.description or "" for entry in described}


def _argument(parameter: inspect.Parameter, text: str) -> dict[str, Any]:
    """Returns the arguments of `add_argument` for a parameter."""
    kind = parameter.annotation
    if types.NoneType in typing.get_args(kind):
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) is typing.Annotated:  # bounds are the dataclass's to check
        kind = typing.get_args(kind)[0]
    is_option = parameter.kind is not parameter.POSITIONAL_ONLY
    settings: dict[str, Any] = {"help": text.replace("%", "%%")}
    if kind is bool:
        settings["action"] = "store_true"
    elif typing.get_origin(kind) in (list, tuple):
        members = typing.get_args(kind)
        settings["type"] = members[0]
        settings["nargs"] = len(members)
        if typing.get_origin(kind) is list:
            settings["nargs"] = "+"
            if is_option:
                settings["action"] = "extend"
    else:
        settings["type"] = kind
    if parameter.default is not parameter.empty:
        settings["default"] = parameter.default
        if parameter.default not in (None, False, ""):
            settings["help"] += f" (default: {parameter.default})"
        if not is_option:
            settings["nargs"] = "?"
    elif is_option:
        settings["required"] = True
    return settings


def _folded(text: str) -> str:
    """Folds paragraphs to the width of a terminal; indented ones are commands."""
    folded = []
    for block in text.split("\n\n"):
        folded.append(block if block.startswith(" ") else textwrap.fill(block, 79))
    return "\n\n".join(folded)


def listed(entries: Mapping[str, str]) -> list[str]:
    """Lines of names with their descriptions, folded in a column of their own, or below where a
    name is long.
    """
    width = min(max(map(len, entries)), 16)
    margin = " " * (width + 4)
    lines = []
    for name, text in entries.items():
        head = f"  {name:<{width}}  "
        if len(name) > width:
            lines.append(f"  {name}")
            head = margin
        lines += textwrap.wrap(text, 79, initial_indent=head, subsequent_indent=margin)
    return lines


@script()
def run(function: Callable, words: Sequence[str], prog: str | None = None) -> int | None:
    """Runs a function with the arguments of a command line, which the help names `prog`: see
    `build_parser`.

    Where the function takes `**fields`, every unknown `--name value ...` is one of them: its values
    are YAML (none: true), or if the annotation is `str | None`, it is the text of one value (none:
    None). A function of `arguments` alone gets the words as they are."""
    parameters = inspect.signature(function, eval_str=True).parameters
    if list(parameters) == ["arguments"]:
        return function(list(words))
    parser = build_parser(function, prog)
    fields: dict[str, Any] = {}
    for parameter in parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            words, fields = _take_fields(words, parameters.keys(), parameter.annotation)
    try:
        options = parser.parse_args(list(words)).as_dict()
    except argparse.ArgumentError as error:
        raise ValueError(f"{error} ({parser.prog} --help lists the arguments)") from error
    except SystemExit:  # after the help
        return 0
    positional = []
    for name, parameter in parameters.items():
        kind = parameter.annotation
        if _is_group(kind):
            values = {field.name: options.pop(field.name) for field in dataclasses.fields(kind)}
            options[name] = _group(kind, values)
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(options.pop(name))
    return function(*positional, **options, **fields)


def _group(kind: type, values: dict[str, Any]) -> Any:
    """A dataclass of options; its errors name them as the command line does."""
    try:
        return kind(**values)
    except ValueError as error:
        names = re.compile(rf"(?<!-)\b({'|'.join(values)})\b")
        told = names.sub(r"--\1", str(error)).replace("=", " ")
        raise ValueError(told) from error


def split_command_line(
    words: Sequence[str], *, most_values: float = math.inf
) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Splits a command line into words that belong to no option, and the name and values of every
    `--name value ...` and `--name=value`.
    """
    positional: list[str] = []
    options: list[tuple[str, list[str]]] = []
    room = 0.0  # for further values of the last option
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.removeprefix("--").partition("=")
            options.append((name, [value] if equals else []))
            room = 0.0 if equals else most_values
        elif room > 0:
            options[-1][1].append(word)
            room -= 1
        else:
            positional.append(word)
    return positional, options


def _take_fields(
    words: Sequence[str], declared: Collection[str], kind: object
) -> tuple[list[str], dict[str, Any]]:
    """Takes the options that a function does not declare out of a command line."""
    from csan_hf_runtime.yaml_text import load_yaml

    is_text = kind == str | None
    remaining, options = split_command_line(words, most_values=1 if is_text else math.inf)
    fields: dict[str, Any] = {}
    for name, texts in options:
        if name in declared or name == "help":
            remaining += [f"--{name}", *texts]
        elif is_text:
            fields[name] = texts[0] if texts else None
        else:
            values = [load_yaml(text) for text in texts] or [True]
            fields[name] = values if len(values) > 1 else values[0]
    return remaining, fields


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
    # Run alone, as the package imports torch
    file = package_folder("The list of recipes") / "recipes" / "__init__.py"
    module = runpy.run_path(str(file))
    recipes = module["RECIPES"]
    suites = module["SUITES"]
    if name is None:
        for title, files in (("Recipes:", recipes), ("\nSuites:", suites)):
            print(title, *listed({file: files.title(file) for file in files.names()}), sep="\n")
        return
    names = [*recipes.names(), *suites.names()]
    if name not in names:
        hint = module["nearest"](name, names)
        raise ValueError(f"There is no recipe or suite {name}.{hint} `csan-hf recipes` lists them.")
    files = recipes if name in recipes.names() else suites
    text = files.file(name).read_text(encoding="utf-8")
    if output is None or str(output) == "-":
        print(text, end="")
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    with open(output, "x", encoding="utf-8") as copy:
        copy.write(text)
    print(f"{output}: {files.title(name)}")
    if files is recipes:
        print(
            "With other data, change name, description, license, dataset_name and hub_dataset, "
            "which the card says, and leave out validation_sha256."
        )


@script({argparse.ArgumentError: BAD_INPUT})
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a subcommand by its name and its arguments (None = those of the process)."""
    if sys.stderr is None:  # closed by the shell, `2>&-`
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    # A thread that waits long for a core which others use slows all down
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--import", dest="modules", action="append", default=[])
    options, words = parser.parse_known_args(arguments)
    modules = ",".join([os.environ.get(IMPORTS, ""), *options.modules]).split(",")
    if any(modules):
        import_csan_hf("own_code", "--import").import_modules(modules)
    name = words[0] if words else "--help"
    if name in ("-h", "--help"):
        lines = listed({command: text for command, (_, text) in COMMANDS.items()})
        print(USAGE, "", *lines, "", "csan-hf COMMAND --help lists its options.", sep="\n")
        return 0 if words else BAD_INPUT
    if name == "--version":
        print(__version__)
        return 0
    if name not in COMMANDS:
        near = [command for command in COMMANDS if command.startswith(name)]
        near = near or difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {' or '.join(near)}?" if near else "csan-hf --help lists them"
        raise ValueError(f"there is no command {name!r}: {hint}")
    return run(function_of(name), words[1:], f"csan-hf {name}")


def function_of(command: str) -> Callable:
    """Returns the function of a subcommand; of one in csan_hf its declaration, which imports the
    function when it is called.
    """
    module, name = COMMANDS[command][0].split(":")
    if module.startswith(__name__):
        return getattr(importlib.import_module(module), name)
    what = f"csan-hf {command}"
    file = package_folder(what).joinpath(*module.split(".")).with_suffix(".py")
    declared = declaration(file, name)

    @functools.wraps(declared)
    def imported(*arguments: Any, **options: Any) -> int | None:
        function = getattr(import_csan_hf(module, what), name)
        return function(*arguments, **options)

    return imported


def package_folder(what: str) -> Path:
    """Returns the folder of csan_hf, which is not imported; where it is missing `ImportError` names
    `what` needs it.
    """
    package = importlib.util.find_spec("csan_hf")
    if package is None or package.origin is None:
        raise ImportError(f"{what} needs {FULL_PACKAGE}")
    return Path(package.origin).parent


def import_csan_hf(module: str, what: str) -> types.ModuleType:
    """Imports a module of csan_hf; where that or torch is missing `ImportError` names `what` needs
    it.
    """
    if sys.stderr.isatty() and "torch" not in sys.modules:
        print("Loading torch ...", file=sys.stderr)  # this takes seconds
    is_collecting = gc.isenabled()
    gc.disable()  # nothing of an import is garbage, but to look for it takes a sixth of its time
    try:
        return importlib.import_module(f"csan_hf.{module}")
    except ModuleNotFoundError as error:
        if error.name not in ("csan_hf", "torch"):
            raise
        raise ImportError(f"{what} needs {FULL_PACKAGE}") from error
    finally:
        if is_collecting:
            gc.enable()
