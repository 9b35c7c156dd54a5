# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Suites: systems × data sets × seeds over one base recipe, in one YAML file."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from csan_hf.data.corpora import BUILT_IN, DataArguments
from csan_hf.evaluation.metrics import find_metric
from csan_hf.recipes import SUITES
from csan_hf.training.errors import RecipeError, refusing
from csan_hf.training.recipe import (
    COMMANDS,
    Affects,
    Recipe,
    affected_by,
    check_sections,
    find_base,
    merge,
    parse_recipe,
    read_recipe,
    read_yaml,
)
from csan_hf_runtime.text_files import check_file_name, one_line

_KEYS = (
    "name",
    "description",
    "metric",
    "baseline",
    "systems",
    "data",
    "seeds",
    "ensembles",
    "tables",
    "lengths",
    "sizes",
)
_KEYS_OF_A_SIZE = ("base", "settings", "systems", "data", "seeds")
# Keys of a system that are not its recipe's
_KEYS_OF_A_SYSTEM = ("preset", "seeds", "published", "teachers")
CURVES = "curves"
"""Name of the picture of scores by sentences joined."""

Settings = dict[str, Any]
"""Keys of a recipe: those of its top, and sections."""

Columns = dict[str, tuple[str, tuple[str, ...]]]
"""Columns of a table: name -> data set and splits, whose segments are taken together."""


@dataclass(frozen=True, eq=False)
class Run:
    """A run of a suite: a system trained on a data set with a seed.

    Attributes:
        data: Name of the data set.
        system: Name of the system.
        seed: Seed of weights and batches.
        recipe: Its recipe without output_dir, and with teachers by the names of their runs; of an
            ensemble `data`, and the recipes of its `members`.
        members: Of an ensemble, the runs whose models it combines; it is not trained itself.
        teachers: The runs that must be finished before it, whose models teach it.
    """

    data: str
    system: str
    seed: int
    recipe: Settings
    members: tuple[Run, ...] = ()
    teachers: tuple[Run, ...] = ()

    @property
    def key(self) -> tuple[str, str, int]:
        """Data set, system and seed."""
        return self.data, self.system, self.seed

    @property
    def name(self) -> str:
        """The run's name in progress and errors."""
        return f"{self.system}, {self.data}, seed {self.seed}"

    @functools.cached_property
    def _parsed(self) -> Recipe:
        return parse_recipe(self.recipe, self.name)

    def folder(self, output: Path) -> Path:
        """The run's folder within a suite's folder."""
        return output / "runs" / self.data / self.system / f"seed_{self.seed}"

    def recipe_in(self, output: Path) -> Recipe:
        """The recipe as training reads it, for a run in a suite's folder."""
        return dataclasses.replace(self._parsed, output_dir=str(self.folder(output)))


@dataclass(frozen=True)
class Suite:
    """Systems to compare, and the runs that it takes.

    Attributes:
        name: Title of the report.
        description: A sentence or two for the report.
        metric: Name of the metric that decides.
        baseline: Name of the system that all others are compared with.
        runs: All systems and data sets with the first seed, then with the second...
        splits: Data set -> the splits that its runs score, the validation set first.
        tables: Title of a table -> its columns.
        systems: Names of the systems, in order.
        ensembles: All seeds of several systems as one model, a run for each data set.
        published: System -> figures of its paper by name, columns of the report.
        lengths: Title of the table whose columns are numbers of sentences joined, and the most
            that training joins.
    """

    name: str
    description: str
    metric: str
    baseline: str
    runs: tuple[Run, ...]
    splits: dict[str, list[str]]
    tables: dict[str, Columns]
    systems: tuple[str, ...]
    ensembles: tuple[Run, ...]
    published: dict[str, dict[str, Any]]
    lengths: tuple[str, int] | None = None

    @property
    def pictures(self) -> list[str]:
        """Names of the report's pictures, without their endings: of each table, and the curves."""
        return [*self.tables, *([CURVES] if self.lengths else [])]

    @property
    def rows(self) -> tuple[str, ...]:
        """Names of the systems and of the ensembles."""
        return tuple(dict.fromkeys([*self.systems, *(run.system for run in self.ensembles)]))

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, in order."""
        return tuple(dict.fromkeys(run.seed for run in self.runs))

    @property
    def first_run_by_data(self) -> dict[str, Run]:
        """Data set -> the first run on it."""
        return {run.data: run for run in reversed(self.runs)}

    @property
    def first_run_by_system(self) -> dict[str, Run]:
        """System -> its first run, which is on the first data set."""
        return {run.system: run for run in reversed(self.runs)}


def load_suite(path: Path | str, *, size: str | None = None, data_dir: str | None = None) -> Suite:
    """Reads and checks a suite, a YAML file or the name of one that comes with csan_hf; see
    csan_hf/lab/suites/README.md.

    Args:
        path: The file or the name.
        size: One of its sizes; None = the first.
        data_dir: Folder of the data, instead of the recipe's.

    Raises:
        RecipeError: The suite cannot be run; the message names the file and the key.
    """
    path = SUITES.locate(path)
    content = read_yaml(path)
    with refusing(str(path)):
        _check_keys(content, _KEYS)
        sizes = _named(content.get("sizes"), "sizes")
        size = next(iter(sizes)) if size is None else size
        _require(size in sizes, f"there is no size {size!r}, only {', '.join(sizes)}.")
        chosen = _named(sizes[size], f"sizes.{size}")
        _check_keys(chosen, _KEYS_OF_A_SIZE, f"sizes.{size}: ")
        _require("base" in chosen, "a size needs a base, the recipe that it starts from.")
        base = read_recipe(find_base(chosen["base"], path))
        base.pop("output_dir", None)
        settings = _settings(chosen.get("settings"), f"sizes.{size}.settings")
        if data_dir:
            data = settings.get("data") or {}
            settings = {**settings, "data": {**data, "data_dir": data_dir}}
        base = merge(_settings(base, str(chosen["base"])), settings)
        title = one_line(str(content.get("name", path.stem)))
        return _expand(content, chosen, base, f"{title}, size {size}")


def _expand(content: Settings, chosen: Settings, base: Settings, name: str) -> Suite:
    """The suite of the chosen size over a base recipe."""
    systems = _with_size(content, chosen, "systems")
    data = _with_size(content, chosen, "data")
    baseline = content.get("baseline", next(iter(systems)))
    _require(
        baseline in list(systems),  # what YAML says may have no hash
        f"the baseline {baseline!r} is not one of the systems {', '.join(systems)}.",
    )
    recipes = {}
    for set_name, set_settings in data.items():
        for system, settings in systems.items():
            recipes[set_name, system] = _recipe(base, settings, set_settings, system)
    for (set_name, system), recipe in recipes.items():
        _check_held_out(recipe, recipes[set_name, baseline], system, baseline)

    runs = []
    seeds = _seeds(chosen.get("seeds", content.get("seeds", [1])))
    for number, seed in enumerate(seeds):
        for (set_name, system), recipe in recipes.items():
            if number < systems[system].get("seeds", len(seeds)):
                seeded = merge(recipe, {"training": {"seed": seed}})
                runs.append(Run(set_name, system, seed, seeded))
    runs = [_with_teachers(run, systems, runs) for run in runs]

    _require(content.get("metric"), "the key metric is missing; it names one, such as bleu.")
    metric = find_metric(str(content["metric"]))
    _require(
        not metric.needs_sources and metric.needs != "alignments",
        f"a suite compares hypotheses with references, {metric.name} needs more: choose another.",
    )
    splits = {}
    for set_name in data:
        parsed = parse_recipe(recipes[set_name, baseline], f"data.{set_name}")
        splits[set_name] = _held_out_splits(parsed.data_arguments())
    tables = _tables(content, splits)
    published = {
        name: system["published"] for name, system in systems.items() if "published" in system
    }
    return Suite(
        name=name,
        description=str(content.get("description", "")),
        metric=metric.name,
        baseline=baseline,
        runs=tuple(runs),
        splits=splits,
        tables=tables,
        systems=tuple(systems),
        ensembles=tuple(_ensembles(content, runs)),
        published=published,
        lengths=_lengths(content.get("lengths"), tables, recipes),
    )


def _with_size(content: Settings, size: Settings, key: str) -> dict[str, Settings]:
    """The systems or data sets, with what a size changes of some of them."""
    entries = _named(content.get(key), key)
    changes = _named(size[key], f"the size's {key}") if size.get(key) else {}
    _check_keys(changes, tuple(entries), f"{key} of the size: ")
    merged = {}
    for name, entry in entries.items():
        where = f"{key}.{name}"
        check_file_name(name, key)  # runs lie in folders of these names
        merged[name] = merge(_settings(entry, where), _settings(changes.get(name), where))
        if "published" in merged[name]:
            _named(merged[name]["published"], f"{where}: published")
        count = merged[name].get("seeds", 1)
        _require(
            type(count) is int and count > 0,
            f"{where}.seeds must say how many seeds, 1 or more, got {count!r}.",
        )
    return merged


def _recipe(base: Settings, system: Settings, data: Settings, name: str) -> Settings:
    """The recipe of a system on a data set: base < data set < system."""
    changes = {key: value for key, value in system.items() if key not in _KEYS_OF_A_SYSTEM}
    if "preset" in system:
        changes["config"] = {**(changes.get("config") or {}), "preset": system["preset"]}
    recipe = merge(merge(base, data), changes)
    for command in ("output_dir", *COMMANDS):
        _require(
            command not in recipe,
            f"{name}: {command} says what to do with a run, which a suite decides: take it out.",
        )
    training = recipe.get("training") or {}
    _require(
        not training.get("push_to_hub"),
        f"{name}: training.push_to_hub: a suite's runs would all be pushed to one name. Take it "
        "out, and push a finished run's folder by `csan-hf push`.",
    )
    _require(
        training.get("max_steps"),
        f"{name}: a suite needs training.max_steps, the same updates for all runs.",
    )
    return recipe


def _with_teachers(run: Run, systems: dict[str, Settings], runs: list[Run]) -> Run:
    """The run with its system's `teachers`: all seeds of these systems on its data set."""
    names = systems[run.system].get("teachers", [])
    teaching = [name for name, settings in systems.items() if "teachers" not in settings]
    _require(
        isinstance(names, list) and all(name in teaching for name in names),
        f"systems.{run.system}.teachers must list systems that have no teachers themselves "
        f"({', '.join(teaching)}), got {names!r}.",
    )
    if not names:
        return run
    _require(
        "teachers" not in (run.recipe.get("training") or {}),
        f"systems.{run.system}: teachers are systems of the suite or models of "
        "training.teachers, not both: leave one out.",
    )
    teachers = tuple(other for other in runs if other.data == run.data and other.system in names)
    # Their names: folders would differ where a suite has been moved
    taught = {"training": {"teachers": [teacher.name for teacher in teachers]}}
    return dataclasses.replace(run, recipe=merge(run.recipe, taught), teachers=teachers)


def _check_held_out(recipe: Settings, baseline_recipe: Settings, name: str, baseline: str) -> None:
    """Refuses a system that changes what it is scored on: its scores could not be compared."""
    data = recipe.get("data") or {}
    expected = baseline_recipe.get("data") or {}
    for key in {**expected, **data}:
        is_held_out = bool(affected_by(f"data.{key}") & Affects.SCORES) or key == "data_dir"
        _require(
            data.get(key) == expected.get(key) or not is_held_out,
            f"{name} has another data.{key} than {baseline}, and would be scored on other "
            "sentences: say that under data, as a data set.",
        )


def _ensembles(content: Settings, runs: list[Run]) -> Iterator[Run]:
    """The ensembles; the recipe of an ensemble holds those of its members."""
    systems = {run.system for run in runs}
    named = _named(content["ensembles"], "ensembles") if "ensembles" in content else {}
    for name, members in named.items():
        check_file_name(name, "ensembles")
        _require(
            isinstance(members, list)
            and members
            and all(member in list(systems) for member in members)
            and name not in systems,
            f"ensembles.{name} must list systems ({', '.join(sorted(systems))}), under a name "
            "that no system has.",
        )
        for data in dict.fromkeys(run.data for run in runs):
            member_runs = [run for run in runs if run.data == data and run.system in members]
            recipes = []
            for run in member_runs:
                recipes.append({key: value for key, value in run.recipe.items() if key != "data"})
            first = member_runs[0]
            recipe = {"data": first.recipe["data"], "members": recipes}
            yield Run(data, name, first.seed, recipe, tuple(member_runs))


def _lengths(
    title: str | None, tables: dict[str, Columns], recipes: Mapping[tuple[str, str], Settings]
) -> tuple[str, int] | None:
    """The table of lengths, and the most sentences joined in training."""
    if title is None:
        return None
    _require(
        title in list(tables),
        f"lengths must name a table ({', '.join(tables)}), got {title!r}.",
    )
    columns = tables[title]
    data, single = columns.get("1", ("", ()))
    expected: Columns = {"1": (data, single[:1])}
    for name in columns.keys() - {"1"}:
        expected[name] = (data, tuple(f"{split}_x{name}" for split in single))
    _require(
        columns == expected,
        f"lengths: columns of {title!r} must be numbers of sentences joined: 1 with a split, the "
        "others with its SPLIT_xNUMBER.",
    )
    return title, max(recipe["data"].get("join") or 1 for recipe in recipes.values())


def _tables(content: Settings, splits: dict[str, list[str]]) -> dict[str, Columns]:
    """The tables' columns; `splits` are those of each data set."""
    if content.get("tables") is None:
        tests = {name: (name, tuple(names[1:] or names)) for name, names in splits.items()}
        return {"scores": tests}
    tables = {}
    for title, columns in _named(content["tables"], "tables").items():
        check_file_name(title, "tables")  # pictures have these names
        if isinstance(columns, list):
            columns = _columns_of_all_data(title, columns, splits)
        tables[title] = _columns(title, columns, splits)
    return tables


def _columns_of_all_data(title: str, wanted: list[str], splits: dict[str, list[str]]) -> Settings:
    """A column for each data set that has one of the splits wanted."""
    columns = {}
    for data, names in splits.items():
        chosen = [split for split in wanted if split in names]
        if chosen:
            columns[data] = chosen
    _require(columns, f"tables.{title}: no data set has a split {', '.join(map(str, wanted))}.")
    return columns


def _columns(title: str, columns: object, splits: dict[str, list[str]]) -> Columns:
    """The columns of a table; of a single data set they may have any names."""
    named_columns = {}
    seen: set[tuple[str, str]] = set()
    for name, chosen in _named(columns, f"tables.{title}").items():
        where = f"tables.{title}.{name}"
        data = name if name in splits or len(splits) > 1 else next(iter(splits))
        _require(
            data in splits,
            f"{where}: there is no data set of that name, only {', '.join(splits)}.",
        )
        _require(
            isinstance(chosen, list) and chosen,
            f"{where} must be a list of splits, got {chosen!r}.",
        )
        for split in chosen:
            _require(split in splits[data], f"{where}: {data} has no split {split!r}.")
            _require(
                (data, split) not in seen,
                f"{where}: {split} of {data} stands twice, and tests over all columns would count "
                "it twice: make a second table.",
            )
            seen.add((data, split))
        named_columns[name] = (data, tuple(chosen))
    return named_columns


def _held_out_splits(data: DataArguments) -> list[str]:
    if data.dataset in BUILT_IN:
        tests = ["test", *(f"test_x{count}" for count in data.join_test or ())]
    else:
        tests = [name for name in data.split_names if name not in ("train", "validation")]
    return ["validation", *tests]


def _seeds(seeds: Any) -> list[int]:
    are_seeds = isinstance(seeds, list) and all(
        type(seed) is int and 0 <= seed < 2**32 for seed in seeds
    )
    _require(
        are_seeds and seeds and len(set(seeds)) == len(seeds),
        f"seeds must be a list of different whole numbers from 0 to 2^32 - 1, got {seeds!r}.",
    )
    return seeds


def _named(value: Any, where: str) -> Settings:
    """A value that must be a mapping with text for keys."""
    _require(
        isinstance(value, dict) and value,
        f"{where} must hold names and their settings, got {value!r:.80}.",
    )
    for name in value:
        _require(isinstance(name, str), f"{where}: the name {name!r} is no text: put it in quotes.")
    return value


def _settings(value: Any, where: str) -> Settings:
    """Keys and sections of a recipe, as far as `merge` depends on their types; training checks
    their values.
    """
    settings = {} if value is None else value
    _require(
        isinstance(settings, dict),
        f"{where} must hold keys of a recipe and their values, got {value!r:.80}.",
    )
    check_sections(settings, where)
    return settings


def _check_keys(content: Settings, known: tuple[str, ...], where: str = "") -> None:
    for key in content:
        _require(key in known, f"{where}unknown key {key}; there are {', '.join(known)}.")


def _require(condition: object, message: str) -> None:
    if not condition:
        raise RecipeError(message)
