#!/usr/bin/env python
"""Trains the model that a recipe describes: `python scripts/train.py RECIPE.yaml [--key value ...]`."""

import os
import sys

from accelerate import PartialState

from csan_hf.command_line import script
from csan_hf.training.dry_run import dry_run
from csan_hf.training.options import RecipeError
from csan_hf.training.recipe import format_help, load_recipe, split_command_line
from csan_hf.training.run import train_from_recipe
from csan_hf.training.stopping import RunError, RunInterrupted


@script({RunError: 1})
def main(arguments: list[str]) -> int:
    path, overrides, wants_help = split_command_line(arguments)
    if wants_help:
        print(format_help(dict(overrides).get("model", "csan")), end="")
        return 0
    if path is None:
        raise RecipeError("no recipe given. Try: python scripts/train.py scripts/recipes/numbers.yaml")
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
