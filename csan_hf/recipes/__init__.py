# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The recipes and suites that come with the package: one commented YAML file each, found by
name.
"""

import difflib
import itertools
import os
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class NamedFiles:
    """The YAML files of a folder, by their names without `.yaml`; `kind` is what messages call one
    of them.
    """

    folder: Path
    kind: str

    def names(self) -> list[str]:
        """Returns the names, in order."""
        return sorted(path.stem for path in self.folder.glob("*.yaml"))

    def file(self, name: str) -> Path:
        """Returns the file of one of the names."""
        return self.folder / f"{name}.yaml"

    def locate(self, path: Path | str) -> Path:
        """Returns a path that is a file as it is, and a name's file else.

        Raises:
            ValueError: There is neither; the message lists the YAML files beside the path and
                suggests a name.
        """
        name = os.fspath(path)
        path = Path(path)
        if path.is_file():
            return path
        if name in self.names():
            return self.file(name)
        beside = sorted(map(str, path.parent.glob("*.yaml")))  # of no folder, no files
        there = f" The folder holds {', '.join(beside)}." if beside else ""
        raise ValueError(
            f"There is no {self.kind} {name}.{there}{nearest(path.stem, self.names())} `csan-hf "
            "recipes` lists those that come with csan_hf."
        )

    def title(self, name: str) -> str:
        """Returns the first sentence of a file's comment, which says what it is."""
        lines = [line.strip() for line in self.file(name).read_text(encoding="utf-8").splitlines()]
        comment = itertools.takewhile(lambda line: line.startswith("# "), lines)
        text = " ".join(line.removeprefix("# ") for line in comment)
        # "et al. (NAACL 2019)" ends no sentence
        return re.split(r"[.] (?=[A-Z])", text)[0].rstrip(".:")


def nearest(name: str, names: list[str]) -> str:
    """Returns a sentence that suggests the nearest of the names, or nothing if none is near."""
    near = difflib.get_close_matches(name.lower().removesuffix(".yaml"), names, n=1)
    return f" Did you mean {near[0]}?" if near else ""


RECIPES = NamedFiles(Path(__file__).parent, "recipe")
SUITES = NamedFiles(RECIPES.folder.parent / "lab" / "suites", "suite")
