# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The report of a suite: Markdown, CSV, JSON and pictures."""

from __future__ import annotations

import csv
import io
import re
import statistics
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from csan_hf.analysis.figures import plot_differences, plot_scores_by_joined, save_figure
from csan_hf.evaluation.metrics import CorpusMetric, find_metric
from csan_hf.evaluation.significance import SIGNIFICANT, PairedTest, shown_p_value
from csan_hf.evaluation.translate import search_name
from csan_hf.report.page import render_template
from csan_hf.text_files import one_line, path_inside, write_json, write_text
from csan_hf.training.plan import DEFAULT_GENERATION
from csan_hf.training.recipe import RecipeError

from .lengths import FAILURES, Lengths, read_lengths
from .records import HYPOTHESES, RUNS, SuiteRecords
from .results import Row, Score, Table
from .speed import Speed
from .suite import CURVES, Suite

_FEW_SEGMENTS = 30
POOLED = "all columns pooled"
REPORT = "report.md"
FLOPS = "FLOPs a target token (×10⁵)"


def write_report(
    suite: Suite,
    tables: list[Table],
    output: Path,
    speeds: dict[str, Speed],
    failed: dict[str, str],
) -> None:
    """Writes `report.md`, `scores.csv`, `report.json` and a picture of each table that has rows.

    Args:
        suite: The suite.
        tables: What is finished.
        output: The suite's folder.
        speeds: System -> its speed of training; may be empty.
        failed: Cells that failed, with the reason.
    """
    lengths = read_lengths(suite, output)
    facts = system_facts(suite, output, speeds)
    finished = SuiteRecords(suite.cells, output).finished
    unfinished = [cell.name for cell in suite.cells if cell not in finished]
    text = _markdown(suite, tables, facts, unfinished, failed, lengths)
    write_text(output / REPORT, text)  # first: by it a folder is known
    write_text(output / "scores.csv", _csv(tables))
    content = {
        "suite": suite.name,
        "metric": suite.metric,
        "baseline": suite.baseline,
        "seeds": list(suite.seeds),
        "systems": facts,
        "tables": [asdict(table) for table in tables],
        "not_finished": unfinished,
        "failed": failed,
        **({"lengths": asdict(lengths)} if lengths else {}),
    }
    write_json(output / "report.json", content)
    for table in tables:
        if lengths and table.rows and suite.lengths and table.title == suite.lengths[0]:
            scores = {
                name: {
                    int(column): list(score.seeds.values()) for column, score in row.columns.items()
                }
                for name, row in table.rows.items()
            }
            label = f"{find_metric(suite.metric).label}, {search_of(suite)}"
            figure = plot_scores_by_joined(scores, label, lengths.trained)
            for ending in (".png", ".svg"):
                save_figure(figure, output / f"{CURVES}{ending}")
        if table.rows:
            tests = differences(table, suite.baseline)
            figure = plot_differences(
                tests, find_metric(suite.metric), suite.baseline, search_of(suite)
            )
            for ending in (".png", ".svg"):
                save_figure(figure, output / f"{table.title}{ending}")


def search_of(suite: Suite) -> str:
    """How the runs translate: greedy, beam 5."""
    settings = [{**DEFAULT_GENERATION, **cell.recipe.get("generation", {})} for cell in suite.cells]
    return " or ".join(dict.fromkeys(search_name(own["num_beams"]) for own in settings))


def check_folder(suite: Suite, folder: Path) -> None:
    """Raises `RecipeError` if a folder holds a run that another recipe trained, or the report of
    something else.

    A link that leads out of the folder, as one from elsewhere may hold, is a `ValueError`: it is
    never followed."""
    for path in folder.rglob("*"):
        if path.is_symlink():
            path_inside(folder, *path.relative_to(folder).parts)
    records = SuiteRecords((*suite.cells, *suite.ensembles), folder)
    for cell in records.cells:
        records.check(cell)
    pictures = [f"{name}{ending}" for name in suite.pictures for ending in (".png", ".svg")]
    names = [
        name
        for name in (REPORT, "report.json", "scores.csv", RUNS, HYPOTHESES, *pictures)
        if (folder / name).exists()
    ]
    if REPORT in names:
        is_known = (folder / REPORT).read_bytes().splitlines()[:1] == [f"# {suite.name}".encode()]
    else:
        is_known = any(map(records.is_known, suite.cells))
    if names and not is_known:
        raise RecipeError(
            f"{folder / names[0]} is not of a report of {suite.name}: choose another folder, or "
            "delete it."
        )


def system_facts(suite: Suite, output: Path, speeds: dict[str, Speed]) -> dict[str, dict[str, Any]]:
    """Parameters, speed and training time of each system."""
    records = SuiteRecords((*suite.cells, *suite.ensembles), output)
    finished = records.finished
    facts: dict[str, dict[str, Any]] = {}
    for name in suite.rows:
        done = [records.results(cell) for cell in finished if cell.system == name]
        speed = speeds.get(name)
        facts[name] = {
            "parameters": done[0]["parameters"] if done else speed and speed.parameters,
            "relative_speed": speed and round(speed.relative, 3),
            **({"flops": speed.flops} if speed and speed.flops else {}),
            "minutes": round(statistics.median(run["training"]["seconds"] for run in done) / 60, 1)
            if done
            else None,
            "updates": done[0]["training"]["updates"] if done else None,
            "runs": len(done),
            "devices": sorted(
                {run["environment"]["device"] for run in done if "environment" in run}
            ),
        }
    return facts


def _markdown(
    suite: Suite,
    tables: list[Table],
    facts: dict[str, dict[str, Any]],
    unfinished: list[str],
    failed: dict[str, str],
    lengths: Lengths | None,
) -> str:
    metric = find_metric(suite.metric)
    # Of which systems intervals and p-values say nothing of another training, or only what others'
    # seeds say
    segments_only, single = [], []
    for name in (name for name in suite.rows if name != suite.baseline):
        rows = [table.rows[name] for table in tables if name in table.rows]
        scores = [score for row in rows for score in row.columns.values()]
        tests = [
            test
            for test in (*(score.test for score in scores), *(row.pooled for row in rows))
            if test
        ]
        if any(not test.degrees for test in tests):
            segments_only.append(_plain(name))
        elif tests and max(len(score.seeds) for score in scores) == 1:
            single.append(_plain(name))
    few = {
        column: count
        for table in tables
        for column, count in table.segments.items()
        if count < _FEW_SEGMENTS
    }
    unfinished_named = "; ".join(unfinished)
    if len(unfinished) > 12:
        of_seeds = Counter(cell.seed for cell in suite.cells)
        counts = sorted(
            Counter(cell.seed for cell in suite.cells if cell.name in unfinished).items()
        )
        unfinished_named = ", ".join(
            f"{count} of {of_seeds[seed]} with seed {seed}" for seed, count in counts
        )
    shown: set[str] = set()
    return render_template(
        "suite.md.jinja",
        suite=suite,
        metric=metric,
        search=search_of(suite),
        systems=_systems_table(suite, facts),
        devices=sorted({_plain(device) for found in facts.values() for device in found["devices"]}),
        segments_only=segments_only,
        single=single,
        few=[f"{_plain(column)} ({count})" for column, count in few.items()],
        tables=[
            (table, _score_table(table, metric, suite.baseline, shown), _unequal(table))
            for table in tables
        ],
        unfinished=unfinished,
        unfinished_named=unfinished_named,
        failed=failed,
        lengths=lengths,
        failures=lengths and _failures_table(lengths),
        places=lengths and _places_table(lengths, metric),
        kinds=FAILURES,
        curves=CURVES,
        shown=shown,
        significant=SIGNIFICANT,
        flops=FLOPS,
        number=_number,
        plain=_plain,
    )


def _systems_table(suite: Suite, facts: dict[str, dict[str, Any]]) -> str:
    base = facts[suite.baseline]["parameters"]
    rows = [
        [
            "system",
            "parameters",
            "Δ parameters",
            "speed of training",
            "minutes a run (median)",
            "runs",
        ]
    ]
    has_flops = any("flops" in found for found in facts.values())
    rows[0] += [FLOPS] * has_flops
    published = list(dict.fromkeys(key for figures in suite.published.values() for key in figures))
    rows[0] += [f"published {key}" for key in published]
    for name, found in facts.items():
        own = found["parameters"]
        difference = None if None in (own, base) or name == suite.baseline else own - base
        shown = [
            _shown(own, ","),
            _shown(difference, "+,"),
            _shown(found["relative_speed"], ".2f", "× "),
        ]
        shown += [_shown(found["minutes"], ".1f"), str(found["runs"])]
        shown += [_shown(found.get("flops", 0.0) / 1e5 or None, ",.0f")] * has_flops
        rows.append(
            [
                name,
                *shown,
                *(_plain(str(suite.published.get(name, {}).get(key) or "")) for key in published),
            ]
        )
    return _aligned(rows)


def _failures_table(lengths: Lengths) -> str:
    rows = [["system", *FAILURES]]
    rows += [
        [name, *(f"{100 * own[kind]:.0f}%" for kind in FAILURES)]
        for name, own in lengths.failures.items()
    ]
    return _aligned(rows)


def _places_table(lengths: Lengths, metric: type[CorpusMetric]) -> str:
    rows = [["system", *(str(place + 1) for place in range(lengths.longest))]]
    rows += [
        [name, *(_number(score, metric) for score in scores)]
        for name, scores in lengths.places.items()
    ]
    return _aligned(rows)


def _unequal(table: Table) -> str | None:
    """The system whose seeds differ more than those of others."""
    name, p_value = table.unequal_seeds or ("", 1.0)
    return _plain(name) if p_value < SIGNIFICANT else None


def _score_table(table: Table, metric: type[CorpusMetric], baseline: str, shown: set[str]) -> str:
    """The table; the heads of its columns are added to `shown`."""
    rows = list(table.rows.values())
    filled = {
        column for row in rows for column in row.columns
    }  # means of others are not comparable
    columns = [("system", list(table.rows))]
    columns += [
        (column, [_score(row.columns.get(column), metric) for row in rows])
        for column in table.columns
    ]
    if len(table.columns) > 1:
        means = [row.mean if row.columns.keys() == filled else None for row in rows]
        columns.append(("mean", [_number(mean, metric) for mean in means]))
    columns += [
        ("±", [_number(row.between_seeds, metric) for row in rows]),
        (f"Δ to {baseline}", [_difference(row.pooled, metric) for row in rows]),
        ("p", [_p_value(row.pooled.p_value if row.pooled else None) for row in rows]),
        ("p (Holm)", [_p_value(row.adjusted, r"\*") for row in rows]),
        ("p over columns", [_p_value(row.over_columns and row.over_columns[1]) for row in rows]),
        ("vote of the seeds", [_number(_mean_vote(row), metric) for row in rows]),
    ]
    optional = ("±", "p over columns", "vote of the seeds")
    columns = [(head, cells) for head, cells in columns if any(cells) or head not in optional]
    shown |= {head for head, _ in columns}
    return _aligned(
        [
            [head for head, _ in columns],
            *map(list, zip(*(cells for _, cells in columns), strict=True)),
        ]
    )


def _score(score: Score | None, metric: type[CorpusMetric]) -> str:
    if score is None:
        return ""
    is_sure = score.adjusted is not None and score.adjusted < SIGNIFICANT
    return _number(score.score, metric) + (r"\*" if is_sure else "")


def _mean_vote(row: Row) -> float | None:
    votes = [score.vote for score in row.columns.values() if score.vote is not None]
    return statistics.mean(votes) if len(votes) == len(row.columns) else None


def _difference(test: PairedTest | None, metric: type[CorpusMetric]) -> str:
    if test is None:
        return ""
    difference, low, high = (
        f"{value:+.{metric.decimals}f}" for value in (test.difference, *test.interval)
    )
    return f"{difference} [{low}, {high}]"


def _p_value(value: float | None, star: str = "") -> str:
    return "" if value is None else shown_p_value(value).replace("*", star)


def _number(value: float | None, metric: type[CorpusMetric]) -> str:
    return _shown(value, f".{metric.decimals}f")


def _shown(value: float | None, form: str, before: str = "") -> str:
    return "" if value is None else f"{before}{value:{form}}"


def _aligned(rows: list[list[str]]) -> str:
    head, *body = [
        "| " + " | ".join(one_line(cell).replace("|", r"\|") for cell in row) + " |" for row in rows
    ]
    return "\n".join([head, "| --- |" + " ---: |" * (len(rows[0]) - 1), *body])


def _plain(text: str) -> str:
    """A text of a program in Markdown: nothing in it is markup."""
    return re.sub(r"([\\`*<>\[\]|])", r"\\\1", one_line(text))


def _csv(tables: list[Table]) -> str:
    """One line for each table, column, system and seed."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["table", "column", "system", "seed", "score"])
    for table in tables:
        for name, row in table.rows.items():
            for column, score in row.columns.items():
                writer.writerows(
                    [table.title, column, name, seed, value] for seed, value in score.seeds.items()
                )
    return file.getvalue()


def differences(table: Table, baseline: str) -> dict[str, dict[str, PairedTest | None]]:
    """Returns each other system's difference to the baseline: of several columns pooled, then of
    each.
    """
    found: dict[str, dict[str, PairedTest | None]] = {}
    for name, row in table.rows.items():
        if name != baseline:
            pooled = {POOLED: row.pooled} if len(table.columns) > 1 else {}
            own = {
                column: row.columns[column].test if column in row.columns else None
                for column in table.columns
            }
            found[name] = {**pooled, **own}
    return found
