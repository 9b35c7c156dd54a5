# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""`csan-hf train`: its command line and the help that needs no torch."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from csan_hf_runtime.keys import section_names
from csan_hf_runtime.text_files import write_json

from . import import_csan_hf, listed, package_folder, split_command_line
from .declarations import declaration, option_text

_TRAIN_USAGE = """usage: csan-hf train RECIPE [--key value ...]
       csan-hf train --help [SECTION | KEY | all]

Trains the model of a recipe (a YAML file, or a name that `csan-hf recipes`
lists), scores it on the test sets and writes model, tokenizer, scores and
model card into output_dir. Options override keys of the recipe:
  csan-hf train numbers --training.learning_rate 1e-3 --local_window 5
The section (`training.`) may be left out if no other section has the key.
Values are YAML. A recipe with `base: RECIPE` needs only the keys that differ.
The same command again resumes an interrupted run; --overwrite starts anew.
Without training, --dry_run checks a recipe and estimates memory and time.
Several processes: torchrun --nproc_per_node 2 -m csan_hf train RECIPE
"""


class RecipeCommand(NamedTuple):
    """A command line of a recipe.

    Args:
        recipe: File or name, if there is one.
        overrides: Pairs of a key and the text of its value, None if it has none.
        help: The section or key that help was asked for, "" for the short help; None: no help.
    """

    recipe: str | None
    overrides: list[tuple[str, str | None]]
    help: str | None


def read_command_line(words: Sequence[str]) -> RecipeCommand:
    """Reads `RECIPE --key value --key=value --flag`, with `--help`, `--help SECTION` or
    `--SECTION.help` anywhere.

    Raises:
        ValueError: On a second file name or an argument that is neither a file nor an option.
    """
    words = ["--help" if word == "-h" else word for word in words]
    recipes, options = split_command_line(words, most_values=1)
    overrides: list[tuple[str, str | None]] = []
    help: str | None = None
    for name, values in options:
        if name == "help" and values and _is_recipe(values[0]):
            recipes += values
            help = ""
        elif name == "help":
            [help] = values or [""]
        elif name.endswith(".help"):
            recipes += values
            help = name.removesuffix(".help")
        else:
            overrides.append((name, values[0] if values else None))
    for place, word in enumerate(recipes):
        if place > 0 or word.startswith("-"):
            raise ValueError(
                f"{word!r} is not understood: pass one recipe, then --key value pairs."
            )
    return RecipeCommand(recipes[0] if recipes else None, overrides, help)


def _is_recipe(word: str) -> bool:
    recipes = package_folder("csan-hf train") / "recipes"
    return word.endswith((".yaml", ".yml")) or (recipes / f"{word}.yaml").is_file()


def train(arguments: list[str]) -> int:
    """Runs `csan-hf train`."""
    recipe, overrides, help = read_command_line(arguments)
    if help == "":
        print(format_short_help())
        return 0
    if help is not None:
        print(_section_help(help, dict(overrides).get("model"), recipe))
        return 0
    command = import_csan_hf("commands.train", "csan-hf train")
    if recipe is None:
        raise ValueError(
            "no recipe given, which comes before the options: csan-hf train numbers --dry_run "
            "(`csan-hf recipes` lists them)"
        )
    return command.train(recipe, overrides)


def format_short_help() -> str:
    """Returns the usage, the sections, and the keys at the top of a recipe."""
    import docstring_parser

    recipe = _recipe_declaration()
    helps = {}
    for argument in docstring_parser.parse(recipe.__doc__).params:
        helps[argument.arg_name] = " ".join((argument.description or "").split())
    sections = {name: helps[name] for name in section_names(recipe)}
    options = []
    for field in dataclasses.fields(recipe):
        if field.name not in sections:
            text = option_text(field.name, field.type, field.default, helps[field.name])
            options.append(text)
    lines = [_TRAIN_USAGE, "sections (csan-hf train --help training):", *listed(sections)]
    return "\n".join([*lines, "", "top of the file:", *options])


def _recipe_declaration() -> type:
    """The fields and the docstring of `csan_hf.training.Recipe`."""
    file = package_folder("csan-hf train") / "training" / "recipe.py"
    return declaration(file, "Recipe")


def _section_help(topic: str, model: str | None, recipe: str | None) -> str:
    """Returns a section's help, which the user's cache keeps: csan_hf takes seconds to import."""
    if recipe is not None or "csan_hf" in sys.modules:  # a module of --import may change help
        command = import_csan_hf("commands.train", "csan-hf train")
        return command.format_help(topic, model, recipe)
    name = f"{topic} {model}"
    code = _digest_of_code()
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    file = Path(cache, "csan_hf", "help.json")
    texts: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError):
        texts = json.loads(file.read_text(encoding="utf-8"))
    if texts.get("code") != code:
        texts = {"code": code}
    if name not in texts:
        command = import_csan_hf("commands.train", "csan-hf train")
        for section in (*section_names(_recipe_declaration()), "all", topic):
            texts[f"{section} {model}"] = command.format_help(section, model)
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, texts)
    return texts[name]


def _digest_of_code() -> str:
    """A digest of what help follows from."""
    versions = [version(package) for package in ("transformers", "jsonargparse")]
    digest = hashlib.sha256(repr([sys.version, *versions]).encode())
    for folder in (package_folder("csan-hf train"), Path(__file__).parent):
        for file in sorted(folder.rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()
