# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Suites: systems × data sets × seeds over one base recipe, in one YAML file."""

from __future__ import annotations

import copy
import reprlib
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from csan_hf.evaluation.metrics import find_metric
from csan_hf.models.configuration_csan import CsanConfig
from csan_hf.recipes import RECIPES
from csan_hf.suites import SUITES
from csan_hf.text_files import check_file_name, one_line
from csan_hf.training.recipe import COMMANDS, SECTIONS, RecipeError, read_yaml

_KEYS = ("name", "description", "metric", "baseline", "systems", "data", "seeds", "tables", "sizes")
_OF_SIZES = ("base", "settings", "systems", "data", "seeds")
_OF_TRAINING = ("train", "train_size", "streaming", "max_source_length", "max_target_length", "max_length_ratio")
_FULL_ATTENTION = {"local_window": None, "head_area": 1}

Settings = dict[str, Any]
"""Keys of a recipe: those of its top, and sections."""


@dataclass(frozen=True, eq=False)
class Cell:
    """One training run.

    Attributes:
        data: Name of its data set.
        system: Name of its system.
        seed: Seed of its weights and batches.
        recipe: Keys and sections, without output_dir.
    """

    data: str
    system: str
    seed: int
    recipe: Settings

    @property
    def name(self) -> str:
        """The cell's name in progress and errors."""
        return f"{self.system}, {self.data}, seed {self.seed}"

    def folder(self, output: Path) -> Path:
        """Folder of the run."""
        return output / "runs" / self.data / self.system / f"seed_{self.seed}"


@dataclass(frozen=True)
class Suite:
    """What is compared.

    Attributes:
        name: Title of the report.
        description: A sentence or two for the report.
        metric: Name of the metric that decides.
        baseline: The system that the others are compared with.
        cells: The runs: first all systems and data sets with the first seed, then with the second...
        tables: Title of a table -> its columns: name -> data set and splits, whose segments are taken together.
    """

    name: str
    metric: str
    baseline: str
    cells: tuple[Cell, ...]
    tables: dict[str, dict[str, tuple[str, tuple[str, ...]]]]
    description: str = ""
    systems: tuple[str, ...] = field(default=())

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, in order."""
        return tuple(dict.fromkeys(cell.seed for cell in self.cells))


def load_suite(path: Path | str, *, size: str | None = None, data_dir: str | None = None) -> Suite:
    """Reads a suite.

    Args:
        path: YAML file, or the name of a suite that comes with csan_hf; csan_hf/suites/README.md describes its keys.
        size: One of its sizes; None = the first.
        data_dir: Folder of the data, instead of the recipe's.

    Raises:
        RecipeError: A key is missing, unknown or of another type, or names something that does not exist.
    """
    try:
        path = SUITES.locate(path)
    except ValueError as error:
        raise RecipeError(str(error)) from None
    content = read_yaml(path)
    _check_keys(content, _KEYS, str(path))
    sizes = _mapping(content, "sizes", str(path))
    size = next(iter(sizes)) if size is None else size
    if size not in sizes:
        raise RecipeError(f"{path}: there is no size {size!r}, only {', '.join(sizes)}.")
    chosen = _mapping(sizes, size, f"{path}: sizes")
    _check_keys(chosen, _OF_SIZES, f"{path}: sizes.{size}")
    systems, data = (_with_size(_mapping(content, key, str(path)), chosen, key, path) for key in ("systems", "data"))
    for kind, names in (("system", systems), ("data set", data)):
        _check_names(names, f"{path}: the {kind}")  # runs lie in folders of these names
    baseline = content.get("baseline", next(iter(systems)))
    if baseline not in list(systems):
        raise RecipeError(f"{path}: the baseline {_shown(baseline)} is not one of the systems {', '.join(systems)}.")
    base = _base(path, chosen)
    settings = _part(chosen.get("settings"), f"{path}: sizes.{size}.settings")
    everywhere = merge(settings, {"data": {"data_dir": data_dir}} if data_dir else {})
    seeds = _seeds(chosen.get("seeds", content.get("seeds", [1])), f"{path}: seeds")
    cells = [
        Cell(
            set_name,
            name,
            seed,
            _cell_recipe(base, everywhere, of_system, of_data, seed, f"{path}: {name}"),
        )
        for seed in seeds
        for set_name, of_data in data.items()
        for name, of_system in systems.items()
        if seed in seeds[: of_system.get("seeds", len(seeds))]
    ]
    _check_splits(cells, baseline, str(path))
    return Suite(
        name=f"{one_line(_text(content, 'name', path.stem, path)).strip() or path.stem}, size {size}",
        description=_text(content, "description", "", path),
        metric=_metric(content.get("metric"), path),
        baseline=baseline,
        cells=tuple(cells),
        tables=_tables(content.get("tables"), data, cells, str(path)),
        systems=tuple(systems),
    )


def _with_size(entries: Settings, size: Settings, key: str, path: Path) -> Settings:
    """The systems or data sets with what a size says of some of them."""
    own = _mapping(size, key, f"{path}: the size") if size.get(key) else {}
    if unknown := [name for name in own if name not in entries]:
        raise RecipeError(f"{path}: {key} of the size: {unknown[0]!r} is not one of {', '.join(entries)}.")
    merged = {}
    for name, entry in entries.items():
        where = f"{path}: {key}.{name}"
        merged[name] = merge(_part(entry, where), _part(own.get(name), where))
        count = merged[name].get("seeds", 1)
        if key == "systems" and (type(count) is not int or count < 1):
            raise RecipeError(f"{where}.seeds must say how many seeds, 1 or more, got {_shown(count)}.")
    return merged


def merge(first: Mapping[str, Any], second: Mapping[str, Any]) -> Settings:
    """Two sets of recipe keys as one: sections key by key, the second's values win."""
    merged = copy.deepcopy(dict(first))
    for key, value in second.items():
        is_section = key in SECTIONS and isinstance(value, Mapping) and not isinstance(merged.get(key), str)
        merged[key] = {**(merged.get(key) or {}), **copy.deepcopy(dict(value))} if is_section else value
    return merged


def _cell_recipe(
    base: Settings, everywhere: Settings, system: Settings, data: Settings, seed: int, where: str
) -> Settings:
    """The recipe of a cell: base < size < data set < system < seed.

    A system of another family than the base's keeps nothing of the section config; one with a preset keeps nothing
    that makes the base local.
    """
    own = {key: value for key, value in system.items() if key not in ("preset", "seeds")}
    recipe = merge(merge(base, everywhere), data)
    if own.get("model", recipe.get("model", "csan")) != recipe.get("model", "csan"):
        recipe["config"] = {}
    if "preset" in system:
        layers = {**(recipe.get("config") or {}), **(own.get("config") or {})}.get("encoder_layers", 6)
        if not isinstance(preset := system["preset"], str | None):
            raise RecipeError(f"{where}: preset must be a name, or null for no locality, got {_shown(preset)}.")
        try:
            fields = CsanConfig.preset_fields(preset, layers, own.get("config")) if preset else {}
        except (ValueError, TypeError) as error:
            raise RecipeError(f"{where}: {error}") from error
        kept = {key: value for key, value in (recipe.get("config") or {}).items() if "local" not in key}
        recipe["config"] = {**kept, **_FULL_ATTENTION, **fields}
        own["config"] = {key: value for key, value in (own.get("config") or {}).items() if key not in fields}
    recipe = merge(recipe, own)
    recipe.pop("output_dir", None)
    _check_commands(recipe, where)
    return merge(recipe, {"training": {"seed": seed}})


def _check_commands(recipe: Settings, where: str) -> None:
    """Refuses what a suite decides itself, and what would show unfinished runs to others."""
    if command := next((key for key in COMMANDS if key in recipe), None):
        raise RecipeError(f"{where}: {command} says what to do with a run, which a suite decides: take it out.")
    if (recipe.get("training") or {}).get("push_to_hub"):
        raise RecipeError(
            f"{where}: training.push_to_hub: a suite's runs would all be pushed to one name. Take it out, and push a "
            "finished run's folder by `csan-hf push`."
        )


def _check_splits(cells: list[Cell], baseline: str, where: str) -> None:
    """Refuses a system that changes what it is scored on: its scores could not be compared."""
    held_out = {cell.data: _held_out(cell.recipe) for cell in cells if cell.system == baseline}
    for cell in cells:
        own, expected = _held_out(cell.recipe), held_out[cell.data]
        if changed := [key for key in {**expected, **own} if own.get(key) != expected.get(key)]:
            raise RecipeError(
                f"{where}: {cell.system} has another data.{changed[0]} than {baseline}, and would be scored on other "
                "sentences: say that under data, as a data set."
            )


def _held_out(recipe: Settings) -> Settings:
    """What decides the validation and test sets."""
    return {key: value for key, value in (recipe.get("data") or {}).items() if key not in _OF_TRAINING}


def _tables(tables: Any, data: Settings, cells: list[Cell], where: str) -> dict:
    splits = {cell.data: splits_of(cell.recipe) for cell in cells}
    if other := [split for names in splits.values() for split in names if not isinstance(split, str)]:
        raise RecipeError(f"{where}: the name of the test set {other[0]!r} is no text: put it in quotes.")
    if tables is None:
        return {"scores": {name: (name, tuple(splits[name][1:] or splits[name])) for name in data}}
    where = f"{where}: tables"
    _check_names(_mapping({"tables": tables}, "tables", where), f"{where}: the title")  # pictures have these names
    found: dict = {}
    for title, columns in tables.items():
        if isinstance(columns, list):
            wanted = {name: tuple(split for split in columns if split in splits[name]) for name in data}
            named = {name: (name, chosen) for name, chosen in wanted.items() if chosen}
        else:
            columns = _mapping(tables, title, where)
            named = {
                name: (_data_set_of(name, data, at), _list_of_splits(chosen, at))
                for name, chosen in columns.items()
                for at in (f"{where}.{title}.{name}",)
            }
        for name, (of_data, chosen) in named.items():
            if unknown := [split for split in chosen if split not in splits[of_data]]:
                raise RecipeError(f"{where}.{title}.{name}: {of_data} has no split {unknown[0]!r}.")
        places = [(of_data, split) for of_data, chosen in named.values() for split in chosen]
        if twice := [place for place in places if places.count(place) > 1]:
            raise RecipeError(
                f"{where}.{title}: {twice[0][1]} of {twice[0][0]} stands twice, and tests over all columns would "
                "count it twice: make a second table."
            )
        if not named:
            raise RecipeError(f"{where}.{title}: no data set has a split {', '.join(map(str, columns))}.")
        found[title] = named
    return found


def _data_set_of(column: str, data: Settings, where: str) -> str:
    if column in data:
        return column
    if len(data) > 1:
        raise RecipeError(f"{where}: there is no data set of that name, only {', '.join(data)}.")
    return next(iter(data))


def _list_of_splits(splits: Any, where: str) -> tuple[str, ...]:
    if not isinstance(splits, list) or not splits:
        raise RecipeError(f"{where} must be a list of splits, got {_shown(splits)}.")
    return tuple(splits)


def splits_of(recipe: Settings) -> list[str]:
    """Returns the names of the splits that a run scores, the validation set first."""
    data = recipe.get("data") or {}
    test = "test" if data.get("dataset") == "numbers" else data.get("test")
    tests = list(test) if isinstance(test, dict) else ["test"] if test else []
    if isinstance(pairs := data.get("language_pairs"), list):
        tests = [f"{name}_{pair}" for pair in pairs for name in tests]
    return ["validation", *tests]


def _base(path: Path, size: Settings) -> Settings:
    if not isinstance(size.get("base"), str):
        raise RecipeError(
            f"{path}: a size needs a base, the path of a recipe as seen from the suite or the name of one that comes "
            "with csan_hf."
        )
    beside = path.parent / size["base"]
    base = RECIPES.file(size["base"]) if size["base"] in RECIPES.names() and not beside.is_file() else beside
    return _settings(read_yaml(base), str(base))


def _metric(name: Any, path: Path) -> str:
    """The metric's name, if a run of a suite writes all that it needs."""
    try:
        metric = find_metric(str(name))
    except ValueError as error:
        raise RecipeError(f"{path}: {error}") from error
    if metric.needs_sources or metric.needs == "alignments":
        raise RecipeError(f"{path}: a suite compares hypotheses with references, {name} needs more: choose another.")
    return metric.name


def _text(content: Settings, key: str, default: str, path: Path) -> str:
    value = content.get(key, default)
    if not isinstance(value, str):
        raise RecipeError(f"{path}: {key} must be text, got {_shown(value)}.")
    return value


def _seeds(seeds: Any, where: str) -> list[int]:
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int and 0 <= seed < 2**32 for seed in seeds):
        raise RecipeError(f"{where} must be a list of whole numbers from 0 to 2^32 - 1, got {_shown(seeds)}.")
    if len(set(seeds)) < len(seeds):
        raise RecipeError(f"{where}: a seed stands twice in {_shown(seeds)}, and would give the same run again.")
    return seeds


def _mapping(content: Settings, key: str, where: str) -> Settings:
    value = content.get(key)
    if not isinstance(value, dict) or not value:
        raise RecipeError(f"{where}: {key} must hold names and their settings, got {_shown(value)}.")
    if other := [name for name in value if not isinstance(name, str)]:
        raise RecipeError(f"{where}: {key}: the name {other[0]!r} is no text: put it in quotes.")
    return value


def _settings(value: Any, where: str) -> Settings:
    """Keys and sections of a recipe, as far as `merge` depends on their types; training checks the rest."""
    if value is not None and not isinstance(value, dict):
        raise RecipeError(f"{where} must hold keys of a recipe and their values, got {_shown(value)}.")
    for key in SECTIONS:
        section = (value or {}).get(key)
        named = key == "tokenizer" and isinstance(section, str)  # the name of an existing one
        if section is not None and not isinstance(section, dict) and not named:
            raise RecipeError(f"{where}: the section {key} must hold keys and values, got {_shown(section)}.")
    return value or {}


def _part(value: Any, where: str) -> Settings:
    """Settings that a suite itself holds."""
    if "output_dir" in (settings := _settings(value, where)):
        raise RecipeError(f"{where}: output_dir: the suite's --output decides where its runs lie. Take it out.")
    return settings


def _shown(value: Any) -> str:
    """A value in a message: YAML's aliases make a huge one of a small file."""
    return reprlib.repr(value)


def _check_names(names: Iterable[str], what: str) -> None:
    """Refuses what cannot be a file's or folder's name on every system, and two that are the same one on some."""
    seen: dict[str, str] = {}
    for name in names:
        try:
            check_file_name(name, what)
        except ValueError as error:
            raise RecipeError(str(error)) from error
        plain = unicodedata.normalize("NFC", name).casefold()
        if plain in seen:
            raise RecipeError(f"{what} {name!r} is {seen[plain]!r} where files' names have no capitals: rename one.")
        seen[plain] = name


def _check_keys(content: Settings, known: tuple[str, ...], where: str) -> None:
    if unknown := [key for key in content if key not in known]:
        raise RecipeError(f"{where}: unknown key {unknown[0]}; there are {', '.join(known)}.")
