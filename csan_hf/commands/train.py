# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Train what a recipe describes, score it and write its card: `csan-hf train RECIPE [--key value
...]`; or prepare its corpus alone, `csan-hf prepare`.
"""

import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from accelerate import PartialState
from safetensors import SafetensorError

from csan_hf.data.prepared import cache_folder, clear_cache, kept_corpora
from csan_hf.training.dry_run import dry_run
from csan_hf.training.errors import RecipeError
from csan_hf.training.plan import resolve
from csan_hf.training.recipe import Overrides, find_family, find_key, load_recipe, recipe_sections
from csan_hf.training.run import train_from_recipe
from csan_hf.training.stopping import RunError, RunInterrupted
from csan_hf_runtime import is_main_process
from csan_hf_runtime.command_line import script


def format_help(topic: str = "all", model: str | None = None, recipe: str | None = None) -> str:
    """Returns the keys of a section, the key of a name, or all keys, each with its type, default,
    bounds, value in the recipe and help, for a family (None: the recipe's).

    Raises:
        ValueError: There is neither a section nor a key of this name, or no such recipe.
    """
    written = load_recipe(recipe, [] if model is None else [("model", model)])
    model = written.model
    sections = recipe_sections(model)
    if topic != "all" and topic not in sections:
        return find_key(topic, sections).text(written)
    titles = {"": "top of the file", "config": f"config ({find_family(model).config})"}
    texts = []
    for name, section in sections.items():
        if topic in (name, "all"):
            texts.append(f"{titles.get(name, name)}:")
            texts += [option.text(written) for option in section.values()]
            texts.append("")
    if topic in ("config", "all"):
        texts.append(
            f"The section config is that of `--model {model}`; for another family:\n"
            "  csan-hf train --model pervasive_attention --help config"
        )
    return "\n".join(texts).rstrip()


@script(
    {RunError: 1, SafetensorError: 2}
)  # a full disk ends the writing of weights with the latter
def train(path: str, overrides: Overrides) -> int:
    """Runs `csan-hf train RECIPE`."""
    recipe = load_recipe(path, overrides)
    if recipe.dry_run:
        report = dry_run(recipe)  # by every process: they start together
        if is_main_process():
            print(report)
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


def prepare(
    recipe: str | None = None,
    /,
    *,
    cache_dir: str | None = None,
    clear: bool = False,
    **keys: str | None,
) -> None:
    """Tokenize the corpus of a recipe before training, or list the prepared corpora.

        csan-hf prepare RECIPE [--key value ...]
        csan-hf prepare [--cache_dir FOLDER] [--clear]

    Reads the corpus of a recipe, learns its vocabulary and cuts it into tokens, as `csan-hf train`
    does before the first update; every training on the same data with the same tokenizers then
    starts at once. Takes the keys of `csan-hf train`.

    Without a recipe: shows the corpora that are kept, with their sizes, and where.

    Args:
        recipe: file or name of the recipe
        cache_dir: where corpora are kept (default: csan_hf in the cache of the library datasets,
            HF_DATASETS_CACHE)
        clear: remove all of them
    """
    if recipe is None:
        if keys:
            raise RecipeError(
                f"--{min(keys)} belongs to a recipe: csan-hf prepare RECIPE --key value."
            )
        _show_kept(cache_folder(cache_dir), clear=clear)
        return
    if clear:
        raise RecipeError(f"--clear removes every corpus: leave out it or {recipe}.")
    if cache_dir is not None:
        keys["cache_dir"] = cache_dir
    loaded = load_recipe(recipe, [*keys.items()])
    with tempfile.TemporaryDirectory() as folder:
        plan = resolve(replace(loaded, output_dir=folder))
    print(plan.prepare_corpus().report)


def _show_kept(cache: Path, *, clear: bool) -> None:
    corpora = kept_corpora(cache)
    print(f"{cache} keeps {sum(size for _, size in corpora) / 1e6:,.1f} MB:")
    for folder, size in corpora:
        print(f"  {size / 1e6:10,.1f} MB  {folder.relative_to(cache)}")
    if clear:
        clear_cache(cache)
        print("Removed.")
