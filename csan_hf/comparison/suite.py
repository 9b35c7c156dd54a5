# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Suites: systems × data sets × seeds over one base recipe, in one YAML file."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from csan_hf.evaluation.metrics import find_metric
from csan_hf.models.configuration_csan import CsanConfig
from csan_hf.recipes import SUITES
from csan_hf.text_files import check_file_name, one_line
from csan_hf.training.recipe import (
    COMMANDS,
    Affects,
    Recipe,
    RecipeError,
    affected_by,
    check_sections,
    find_base,
    merge,
    parse_recipe,
    read_recipe,
    read_yaml,
)

_OF_SIZES = ("base", "settings", "systems", "data", "seeds")
_KEYS = (
    "name",
    "description",
    "metric",
    "baseline",
    *_OF_SIZES[2:],
    "ensembles",
    "tables",
    "lengths",
    "sizes",
)
CURVES = "curves"
"""Name of the picture of scores by sentences joined."""

Settings = dict[str, Any]
"""Keys of a recipe: those of its top, and sections."""

Columns = dict[str, tuple[str, tuple[str, ...]]]
"""Columns of a table: name -> data set and splits, whose segments are taken together."""


@dataclass(frozen=True, eq=False)
class Cell:
    """One training run: names of its data set and its system, the seed of its weights and batches,
    and its recipe.

    The recipe has keys and sections, without output_dir. An ensemble has members, which are trained
    in its place."""

    data: str
    system: str
    seed: int
    recipe: Settings
    members: tuple[Cell, ...] = ()

    @property
    def key(self) -> tuple[str, str, int]:
        """Data set, system and seed."""
        return self.data, self.system, self.seed

    @functools.cached_property
    def _parsed(self) -> Recipe:
        return parse_recipe(self.recipe, self.name)

    def recipe_in(self, output: Path) -> Recipe:
        """The recipe as training reads it, for a run in a suite's folder."""
        return dataclasses.replace(self._parsed, output_dir=str(self.folder(output)))

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
        cells: The runs: first all systems and data sets with the first seed, then with the
            second...
        ensembles: Systems that are one model together, all their seeds, for each data set: cells
            that are not trained.
        tables: Title of a table -> its columns.
        systems: Names of the systems, in order.
        published: System -> figures of its paper by name, columns of the report.
        lengths: The table whose columns are numbers of sentences joined, and the most that training
            joins.
    """

    name: str
    description: str
    metric: str
    baseline: str
    cells: tuple[Cell, ...]
    tables: dict[str, Columns]
    systems: tuple[str, ...]
    ensembles: tuple[Cell, ...]
    published: dict[str, dict[str, Any]]
    lengths: tuple[str, int] | None = None

    @property
    def pictures(self) -> list[str]:
        """Names of the report's pictures, without their endings: of each table, and the curves."""
        return [*self.tables, *([CURVES] if self.lengths else [])]

    @property
    def rows(self) -> tuple[str, ...]:
        """Names of the systems and of the ensembles."""
        return tuple(dict.fromkeys([*self.systems, *(cell.system for cell in self.ensembles)]))

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, in order."""
        return tuple(dict.fromkeys(cell.seed for cell in self.cells))


def load_suite(path: Path | str, *, size: str | None = None, data_dir: str | None = None) -> Suite:
    """Reads and checks a suite, a YAML file or the name of one that comes with csan_hf; see
    csan_hf/suites/README.md.

    Args:
        path: The file or the name.
        size: One of its sizes; None = the first.
        data_dir: Folder of the data, instead of the recipe's.
    """
    path = SUITES.locate(path)
    content = read_yaml(path)
    _check_keys(content, _KEYS, f"{path}")
    sizes = _named(content, "sizes", f"{path}")
    size = next(iter(sizes)) if size is None else size
    _require(size in sizes, f"{path}: there is no size {size!r}, only {', '.join(sizes)}.")
    chosen = _named(sizes, size, f"{path}: sizes")
    _check_keys(chosen, _OF_SIZES, f"{path}: sizes.{size}")
    systems, data = (_with_size(content, chosen, key, f"{path}") for key in ("systems", "data"))
    baseline = content.get("baseline", next(iter(systems)))
    _require(
        baseline in [*systems],
        f"{path}: the baseline {baseline!r} is not one of the systems {', '.join(systems)}.",
    )
    _require("base" in chosen, f"{path}: a size needs a base, the recipe that it starts from.")
    base = _settings(read_recipe(find_base(chosen["base"], path)), str(chosen["base"]))
    base.pop("output_dir", None)
    base = merge(base, _settings(chosen.get("settings"), f"{path}: sizes.{size}.settings"))
    base = merge(base, {"data": {"data_dir": data_dir}} if data_dir else {})
    seeds = _seeds(chosen.get("seeds", content.get("seeds", [1])), f"{path}: seeds")
    recipes = {
        (set_name, name): _recipe(base, of_system, of_data, f"{path}: {name}")
        for set_name, of_data in data.items()
        for name, of_system in systems.items()
    }
    for (set_name, name), recipe in recipes.items():
        _check_held_out(recipe, recipes[set_name, baseline], f"{path}: {name}", baseline)
    cells = [
        Cell(set_name, name, seed, merge(recipe, {"training": {"seed": seed}}))
        for seed in seeds
        for (set_name, name), recipe in recipes.items()
        if seed in seeds[: systems[name].get("seeds", len(seeds))]
    ]
    _require(
        content.get("metric"), f"{path}: the key metric is missing; it names one, such as bleu."
    )
    metric = find_metric(str(content["metric"]))
    _require(
        not metric.needs_sources and metric.needs != "alignments",
        f"{path}: a suite compares hypotheses with references, {metric.name} needs more: choose "
        "another.",
    )
    tables = _tables(
        content, {name: splits_of(recipes[name, baseline]) for name in data}, f"{path}"
    )
    return Suite(
        name=f"{one_line(str(content.get('name', ''))).strip() or path.stem}, size {size}",
        description=str(content.get("description", "")),
        metric=metric.name,
        baseline=baseline,
        cells=tuple(cells),
        tables=tables,
        systems=tuple(systems),
        ensembles=tuple(_ensembles(cells, content, f"{path}")),
        published={
            name: system["published"] for name, system in systems.items() if system.get("published")
        },
        lengths=_lengths(content.get("lengths"), tables, recipes, f"{path}: lengths"),
    )


def _ensembles(cells: list[Cell], content: Settings, where: str) -> Iterator[Cell]:
    """The ensembles; the recipe of one holds those of its members."""
    systems = {cell.system for cell in cells}
    named = _named(content, "ensembles", where) if "ensembles" in content else {}
    for name, members in named.items():
        check_file_name(name, f"{where}: ensembles")
        known = (
            isinstance(members, list)
            and members
            and systems.issuperset(members)
            and name not in systems
        )
        _require(
            known,
            f"{where}: ensembles.{name} must list systems ({', '.join(sorted(systems))}), under a "
            "name of its own.",
        )
        for data in dict.fromkeys(cell.data for cell in cells):
            of_data = [cell for cell in cells if cell.data == data and cell.system in members]
            recipes = [
                {key: value for key, value in cell.recipe.items() if key != "data"}
                for cell in of_data
            ]
            recipe = {"data": of_data[0].recipe["data"], "members": recipes}
            yield Cell(data, name, of_data[0].seed, recipe, tuple(of_data))


def _lengths(
    title: Any, tables: dict[str, Columns], recipes: dict[Any, Settings], where: str
) -> Any:
    """The table of lengths, and the most sentences joined in training."""
    if title is None:
        return None
    is_table = isinstance(title, str) and title in tables
    _require(is_table, f"{where} must name a table ({', '.join(tables)}), got {title!r}.")
    columns = tables[title]
    data, single = columns.get("1", ("", ()))
    joined = {name: tuple(f"{split}_x{name}" for split in single) for name in columns} | {
        "1": single
    }
    _require(
        len(single) == 1 and all(own == (data, joined[name]) for name, own in columns.items()),
        f"{where}: columns of {title!r} must be numbers of sentences joined: 1 with a split, the "
        "others with its SPLIT_xNUMBER.",
    )
    return title, max(recipe["data"].get("join") or 1 for recipe in recipes.values())


def _with_size(content: Settings, size: Settings, key: str, where: str) -> Settings:
    """The systems or data sets with what a size says of some of them."""
    entries = _named(content, key, where)
    own = _named(size, key, f"{where}: the size") if size.get(key) else {}
    _check_keys(own, tuple(entries), f"{where}: {key} of the size")
    merged = {}
    for name, entry in entries.items():
        at = f"{where}: {key}.{name}"
        check_file_name(name, f"{where}: {key}")  # runs lie in folders of these names
        merged[name] = merge(_settings(entry, at), _settings(own.get(name), at))
        count = merged[name].get("seeds", 1) if key == "systems" else 1
        if "published" in merged[name]:
            _named(merged[name], "published", at)
        _require(
            type(count) is int and count > 0,
            f"{at}.seeds must say how many seeds, 1 or more, got {count!r}.",
        )
    return merged


def _recipe(base: Settings, system: Settings, data: Settings, where: str) -> Settings:
    """The recipe of a system on a data set: base < data set < system.

    A system of another family than the base's keeps nothing of the section config; one with a
    preset keeps nothing that makes the base local."""
    own = {
        key: value for key, value in system.items() if key not in ("preset", "seeds", "published")
    }
    recipe = merge(base, data)
    if "model" in own:
        recipe = merge(recipe, {"model": own["model"]})
    if "preset" in system:
        config, changes = recipe.get("config") or {}, own.get("config") or {}
        depths = {key: value for key, value in config.items() if key.endswith("coder_layers")}
        fields = (
            CsanConfig.preset_fields(system["preset"], {**depths, **changes})
            if system["preset"]
            else {}
        )
        kept = {key: value for key, value in config.items() if "local" not in key}
        given = {
            key: value for key, value in fields.items() if value is not None or "local" not in key
        }
        recipe["config"] = {**kept, "local_window": None, "head_area": 1, **given}
        own["config"] = {key: value for key, value in changes.items() if key not in fields}
    recipe = merge(recipe, own)
    command = next((key for key in ("output_dir", *COMMANDS) if key in recipe), None)
    _require(
        not command,
        f"{where}: {command} says what to do with a run, which a suite decides: take it out.",
    )
    training = recipe.get("training") or {}
    _require(
        not training.get("push_to_hub"),
        f"{where}: training.push_to_hub: a suite's runs would all be pushed to one name. Take it "
        "out, and push a finished run's folder by `csan-hf push`.",
    )
    _require(
        training.get("max_steps"),
        f"{where}: a suite needs training.max_steps, the same updates for all runs.",
    )
    return recipe


def _check_held_out(recipe: Settings, of_baseline: Settings, where: str, baseline: str) -> None:
    """Refuses a system that changes what it is scored on: its scores could not be compared."""
    data = recipe.get("data") or {}
    expected = of_baseline.get("data") or {}
    for key in {**expected, **data}:
        is_held_out = bool(affected_by(f"data.{key}") & Affects.SCORES) or key == "data_dir"
        _require(
            data.get(key) == expected.get(key) or not is_held_out,
            f"{where} has another data.{key} than {baseline}, and would be scored on other "
            "sentences: say that under data, as a data set.",
        )


def _tables(content: Settings, splits: dict[str, list[str]], where: str) -> dict[str, Columns]:
    """The tables' columns; `splits` are those of each data set."""
    if content.get("tables") is None:
        return {"scores": {name: (name, tuple(own[1:] or own)) for name, own in splits.items()}}
    found: dict[str, Columns] = {}
    for title, columns in _named(content, "tables", where).items():
        check_file_name(title, f"{where}: tables")  # pictures have these names
        at = f"{where}: tables.{title}"
        if isinstance(columns, list):
            wanted = {
                name: tuple(split for split in columns if split in own)
                for name, own in splits.items()
            }
            named = {name: (name, chosen) for name, chosen in wanted.items() if chosen}
            _require(named, f"{at}: no data set has a split {', '.join(map(str, columns))}.")
        else:
            named = {}
            for name, chosen in _named({title: columns}, title, f"{where}: tables").items():
                data = name if name in splits or len(splits) > 1 else next(iter(splits))
                _require(
                    data in splits,
                    f"{at}.{name}: there is no data set of that name, only {', '.join(splits)}.",
                )
                _require(
                    isinstance(chosen, list) and chosen,
                    f"{at}.{name} must be a list of splits, got {chosen!r}.",
                )
                unknown = next((split for split in chosen if split not in splits[data]), None)
                _require(unknown is None, f"{at}.{name}: {data} has no split {unknown!r}.")
                named[name] = (data, tuple(chosen))
        places = Counter((data, split) for data, chosen in named.values() for split in chosen)
        [((data, split), count)] = places.most_common(1)
        _require(
            count == 1,
            f"{at}: {split} of {data} stands twice, and tests over all columns would count it "
            "twice: make a second table.",
        )
        found[title] = named
    return found


def splits_of(recipe: Settings) -> list[str]:
    """Returns the names of the splits that a run scores, the validation set first."""
    data = recipe.get("data") or {}
    test = "test" if data.get("dataset") == "numbers" else data.get("test")
    tests = list(test) if isinstance(test, dict) else ["test"] if test else []
    if isinstance(pairs := data.get("language_pairs"), list):
        tests = [f"{name}_{pair}" for pair in pairs for name in tests]
    if isinstance(counts := data.get("join_test"), list):
        tests += [f"{name}_x{count}" for name in tests for count in counts]
    return ["validation", *tests]


def _seeds(seeds: Any, where: str) -> list[int]:
    valid = (
        isinstance(seeds, list)
        and seeds
        and all(type(seed) is int and 0 <= seed < 2**32 for seed in seeds)
    )
    _require(
        valid and len(set(seeds)) == len(seeds),
        f"{where} must be a list of different whole numbers from 0 to 2^32 - 1, got {seeds!r}.",
    )
    return seeds


def _named(content: Settings, key: str, where: str) -> Settings:
    """The entry `key`, which must be a mapping with text for keys."""
    value: Any = content.get(key)
    found = isinstance(value, dict) and value
    _require(found, f"{where}: {key} must hold names and their settings, got {value!r:.80}.")
    for name in value:
        _require(
            isinstance(name, str),
            f"{where}: {key}: the name {name!r} is no text: put it in quotes.",
        )
    return value


def _settings(value: Any, where: str) -> Settings:
    """Keys and sections of a recipe, as far as `merge` depends on their types; training checks the
    rest.
    """
    value = {} if value is None else value
    _require(
        isinstance(value, dict),
        f"{where} must hold keys of a recipe and their values, got {value!r:.80}.",
    )
    check_sections(value, where)
    return value


def _check_keys(content: Settings, known: tuple[str, ...], where: str) -> None:
    unknown = next((key for key in content if key not in known), None)
    _require(unknown is None, f"{where}: unknown key {unknown}; there are {', '.join(known)}.")


def _require(condition: Any, message: str) -> None:
    if not condition:
        raise RecipeError(message)
