# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""List the recipes and suites that come with csan_hf, or copy one for changes.

    csan-hf recipes
    csan-hf recipes multi30k_csan_2d --output my_recipe.yaml

`csan-hf train NAME` runs a recipe by its name, `csan-hf compare NAME` a suite: several systems over one recipe.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from csan_hf.command_line import script
from csan_hf.files import STANDARD_STREAM, write_text
from csan_hf.named_files import NamedFiles, nearest
from csan_hf.recipes import RECIPES
from csan_hf.suites import SUITES


@script()
def main(arguments: list[str]) -> None:
    """Runs `csan-hf recipes`."""
    parser = argparse.ArgumentParser(
        prog="csan-hf recipes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", help="recipe or suite to print or copy (default: list all)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="new file for the copy")
    options = parser.parse_args(arguments)
    if options.name is None and options.output is not None:
        raise ValueError(f"--output {options.output}: which recipe or suite? `csan-hf recipes` lists them.")
    if options.name is None:
        print("\n".join(["Recipes:", *_listed(RECIPES), "", "Suites:", *_listed(SUITES)]))
        return
    files = next((files for files in (RECIPES, SUITES) if options.name in files.names()), None)
    if files is None:
        hint = nearest(options.name, RECIPES.names() + SUITES.names())
        raise ValueError(f"There is no recipe or suite {options.name}.{hint} `csan-hf recipes` lists them.")
    text = files.file(options.name).read_text(encoding="utf-8")
    if options.output is None or str(options.output) == STANDARD_STREAM:
        print(text, end="")
    elif options.output.exists() or options.output.is_symlink():
        raise ValueError(f"{options.output} exists: choose another file.")
    else:
        write_text(options.output, text)
        print(f"{options.output}: {files.title(options.name)}")


def _listed(files: NamedFiles) -> list[str]:
    width = max(map(len, files.names()))
    return [f"  {name:<{width}}  {files.title(name)}" for name in files.names()]
