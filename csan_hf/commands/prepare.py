# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Prepare a recipe's corpus, or show what is kept of others: `csan-hf prepare [RECIPE [--key value
...]]`.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace

from csan_hf.data.prepared import cache_folder, clear_cache, kept_corpora
from csan_hf.training.plan import resolve
from csan_hf.training.recipe import RecipeError, load_recipe
from csan_hf_cli import script

from .train import split_command_line

USAGE = """usage: csan-hf prepare RECIPE [--key value ...]
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
def main(arguments: list[str]) -> int:
    """Runs `csan-hf prepare`."""
    path, overrides, wants_help = split_command_line(arguments)
    if wants_help:
        print(USAGE, end="")
        return 0
    if path is None:
        _show(dict(overrides))
        return 0
    recipe = load_recipe(path, overrides)
    with tempfile.TemporaryDirectory() as folder:
        plan = resolve(replace(recipe, output_dir=folder))
    print(plan.prepare_corpus().report)
    return 0


def _show(options: dict[str, str]) -> None:
    unknown = options.keys() - {"cache_dir", "clear"}
    if unknown:
        raise RecipeError(
            f"--{min(unknown)} belongs to a recipe: csan-hf prepare RECIPE --key value."
        )
    cache = cache_folder(options.get("cache_dir"))
    corpora = kept_corpora(cache)
    print(f"{cache} keeps {sum(size for _, size in corpora) / 1e6:,.1f} MB:")
    for folder, size in corpora:
        print(f"  {size / 1e6:10,.1f} MB  {folder.relative_to(cache)}")
    if "clear" in options:
        clear_cache(cache)
        print("Removed.")
