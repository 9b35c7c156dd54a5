# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Train what a recipe describes, score it and write its card: `csan-hf train RECIPE [--key value
...]`; or prepare its corpus alone, `csan-hf prepare`.
"""

import os
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import replace

from accelerate import PartialState
from safetensors import SafetensorError

from csan_hf.data.prepared import cache_folder, clear_cache, kept_corpora
from csan_hf.training.dry_run import dry_run
from csan_hf.training.plan import resolve
from csan_hf.training.recipe import (
    RecipeError,
    find_family,
    load_recipe,
    recipe_sections,
)
from csan_hf.training.run import train_from_recipe
from csan_hf.training.stopping import RunError, RunInterrupted
from csan_hf_cli import script


def split_command_line(arguments: Sequence[str]) -> tuple[str | None, list[tuple[str, str]], bool]:
    """Splits `RECIPE.yaml --key value --key=value --flag`.

    Returns:
        The recipe's path or None, the overrides, and whether help was asked for.

    Raises:
        RecipeError: On a second file name or an argument that is neither a file nor an option.
    """
    recipe: str | None = None
    overrides: list[tuple[str, str]] = []
    remaining = list(arguments)
    while remaining:
        argument = remaining.pop(0)
        if argument in ("-h", "--help"):
            return recipe, overrides, True
        if argument.startswith("--"):
            key, equals, value = argument[2:].partition("=")
            if not equals:
                has_value = bool(remaining) and not remaining[0].startswith("--")
                value = remaining.pop(0) if has_value else "true"
            overrides.append((key, value))
        elif argument.startswith("-") or recipe is not None:
            raise RecipeError(
                f"{argument!r} is not understood: pass one recipe, then --key value pairs."
            )
        else:
            recipe = argument
    return recipe, overrides, False


def format_help(model: str = "csan") -> str:
    """Returns the usage and every key with its type, default and help."""
    lines = [
        "usage: csan-hf train RECIPE [--key value ...]",
        "",
        "Trains the model of a recipe (a YAML file, or a name that `csan-hf recipes`",
        "lists), scores it on the test sets and writes model, tokenizer, scores and",
        "model card into output_dir. Options override keys of the recipe:",
        "  csan-hf train numbers --training.learning_rate 1e-3 --local_window 5",
        "The section (`training.`) may be left out if no other section has the key.",
        "Values are YAML. A recipe with `base: RECIPE` needs only the keys that differ.",
        "The same command again resumes an interrupted run; --overwrite starts anew.",
        "Without training, --dry_run checks a recipe and estimates memory and time.",
        "",
        f"These are the keys for `--model {model}`; for another family:",
        "  csan-hf train --model pervasive_attention --help",
    ]
    titles = {"": "top of the file", "config": f"config ({find_family(model).config})"}
    indent = " " * 6
    for name, section in recipe_sections(model).items():
        lines += ["", f"{titles.get(name, name)}:"]
        for option in section.values():
            text = f"  --{option.path}  ({option.type_name}; default {option.default_text})"
            lines += textwrap.wrap(text, 79, subsequent_indent=indent, break_on_hyphens=False)
            lines += textwrap.wrap(option.help, 79, initial_indent=indent, subsequent_indent=indent)
    return "\n".join(lines) + "\n"


@script(
    {RunError: 1, SafetensorError: 2}
)  # a full disk ends the writing of weights with the latter
def main(arguments: list[str]) -> int:
    """Runs `csan-hf train`."""
    path, overrides, wants_help = split_command_line(arguments)
    if wants_help:
        print(format_help(dict(overrides).get("model", "csan")), end="")
        return 0
    if path is None:
        raise RecipeError(
            "no recipe given. Try: csan-hf train numbers (`csan-hf recipes` lists them)"
        )
    recipe = load_recipe(path, overrides)
    if recipe.dry_run:
        print(dry_run(recipe))
        return 0
    try:
        train_from_recipe(recipe)
    except RunInterrupted as stop:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            print(stop, file=sys.stderr)
        return stop.exit_code
    PartialState().destroy_process_group()  # of `accelerate launch` or torchrun
    return 0


# ---- preparing alone

_PREPARE_USAGE = """usage: csan-hf prepare RECIPE [--key value ...]
       csan-hf prepare [--cache_dir FOLDER] [--clear]

Reads the corpus of a recipe, learns its vocabulary and cuts it into tokens, as
`csan-hf train` does before the first update; every training on the same data
with the same tokenizers then starts at once. Takes the keys of `csan-hf train`.

Without a recipe: shows the corpora that are kept, with their sizes, and where.

options:
  --cache_dir FOLDER    where corpora are kept (default: csan_hf in the cache of
                        the library datasets, HF_DATASETS_CACHE)
  --clear               remove all of them
"""


@script()
def prepare(arguments: list[str]) -> int:
    """Runs `csan-hf prepare`."""
    path, overrides, wants_help = split_command_line(arguments)
    if wants_help:
        print(_PREPARE_USAGE, end="")
        return 0
    if path is None:
        _show_kept(dict(overrides))
        return 0
    recipe = load_recipe(path, overrides)
    with tempfile.TemporaryDirectory() as folder:
        plan = resolve(replace(recipe, output_dir=folder))
    print(plan.prepare_corpus().report)
    return 0


def _show_kept(options: dict[str, str]) -> None:
    unknown = options.keys() - {"cache_dir", "clear"}
    if unknown:
        raise RecipeError(
            f"--{min(unknown)} belongs to a recipe: csan-hf prepare RECIPE --key value."
        )
    clear = options.get("clear")
    if clear not in (None, "true"):
        raise RecipeError(f"--clear takes no value and removes every corpus, got {clear!r}.")
    cache = cache_folder(options.get("cache_dir"))
    corpora = kept_corpora(cache)
    print(f"{cache} keeps {sum(size for _, size in corpora) / 1e6:,.1f} MB:")
    for folder, size in corpora:
        print(f"  {size / 1e6:10,.1f} MB  {folder.relative_to(cache)}")
    if clear:
        clear_cache(cache)
        print("Removed.")
