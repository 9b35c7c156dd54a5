# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The report of a suite: Markdown, a page, CSV, JSON and pictures."""

import base64
import csv
import io
import math
import re
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from urllib.parse import quote

import markdown

from csan_hf.evaluation.metrics import find_metric
from csan_hf.evaluation.scores import search_name
from csan_hf.evaluation.significance import FEW_SEGMENTS, SIGNIFICANT, PairedTest, shown_p_value
from csan_hf.hub.figures import save_as_png_and_svg
from csan_hf.lab.analysis.charts import plot_differences, plot_scores_by_joined
from csan_hf.lab.report.page import render_template
from csan_hf.training.errors import RecipeError
from csan_hf.training.plan import DEFAULT_GENERATION
from csan_hf_runtime.text_files import one_line, path_inside, write_json, write_text

from .lengths import FAILURES, Lengths
from .records import SuiteRecords
from .suite import CURVES, Suite
from .tables import Row, Score, Table
from .training_speed import Speed

_MOST_PLACES = 15  # columns of the table of scores by a sentence's place
POOLED = "all columns pooled"
REPORT = "report.md"
PAGE = "report.html"
SCORES = "scores.csv"
FLOPS = "FLOPs a target token (×10⁵)"
_OPTIONAL = (FLOPS, "±", "p over columns", "vote of the seeds")
"""Columns that are left out where they have no text."""


@dataclass(frozen=True)
class SystemFacts:
    """Parameters, speed and training time of a system; None where they are not known.

    Attributes:
        parameters: Number of parameters.
        relative_speed: Tokens per second in training, as a multiple of the baseline's.
        flops: Floating-point operations for a target token.
        minutes: Median of its finished runs.
        updates: Updates of a finished run.
        runs: Number of its finished runs.
        devices: Those that trained them.
    """

    parameters: int | None
    relative_speed: float | None
    flops: float | None
    minutes: float | None
    updates: int | None
    runs: int
    devices: list[str]


def write_suite_report(
    records: SuiteRecords,
    tables: list[Table],
    speeds: dict[str, Speed],
    *,
    lengths: Lengths | None = None,
    failed: dict[str, str] | None = None,
) -> None:
    """Writes `report.md`, `scores.csv`, `report.json`, a picture of each table that has rows, and
    `report.html`, which holds text and pictures.

    Args:
        records: The suite, and what is finished of it.
        tables: Its scores.
        speeds: System -> its speed of training; may be empty.
        lengths: Failures and scores of the longest texts.
        failed: Runs that failed, with the reason.
    """
    suite = records.suite
    output = records.output
    failed = failed or {}
    facts = _system_facts(records, speeds)
    unfinished = [run.name for run in suite.runs if not records.is_finished(run)]
    text = _markdown(suite, tables, facts, unfinished, failed, lengths)
    write_text(output / REPORT, text)  # first: by it a folder is known
    write_text(output / SCORES, _csv(tables))
    content = {
        "suite": suite.name,
        "metric": suite.metric,
        "baseline": suite.baseline,
        "seeds": list(suite.seeds),
        "systems": {name: asdict(fact) for name, fact in facts.items()},
        "tables": [asdict(table) for table in tables],
        "not_finished": unfinished,
        "failed": failed,
    }
    if lengths:
        content["lengths"] = asdict(lengths)
    write_json(output / "report.json", content)

    metric = find_metric(suite.metric)
    search = _search(suite)
    for table in tables:
        if not table.rows:
            continue
        tests = differences(table, suite.baseline)
        figure = plot_differences(tests, metric, suite.baseline, search)
        save_as_png_and_svg(figure, output / table.title)
        if lengths and suite.lengths and table.title == suite.lengths[0]:
            label = f"{metric.label}, {search}"
            figure = plot_scores_by_joined(_curves(table), label, lengths.trained)
            save_as_png_and_svg(figure, output / CURVES)
    write_text(output / PAGE, _page(text, suite, output))


def check_folder(records: SuiteRecords) -> None:
    """Raises `RecipeError` if a folder holds a run that another recipe trained, or the report of
    something else.

    A link that leads out of the folder, as one from elsewhere may hold, is a `ValueError`: it is
    never followed.
    """
    folder = records.output
    for path in folder.rglob("*"):
        if path.is_symlink():
            path_inside(folder, *path.relative_to(folder).parts)
    records.check()
    suite = records.suite
    names = [REPORT, PAGE, "report.json", SCORES, *(f"{name}.png" for name in suite.pictures)]
    existing = [name for name in names if (folder / name).exists()]
    if existing and not is_report_of(suite, folder / REPORT):
        raise RecipeError(
            f"{folder / existing[0]} is not of a report of {suite.name}: choose another folder, or "
            "delete it."
        )


def is_report_of(suite: Suite, path: Path) -> bool:
    """Whether a file is the report of a suite of this name and size."""
    heading = path.read_bytes().partition(b"\n")[0] if path.is_file() else b""
    return heading == f"# {suite.name}".encode()


def _page(text: str, suite: Suite, folder: Path) -> str:
    converter = markdown.Markdown(extensions=["tables", "toc"])
    # What names of a suite hold is text, not HTML
    converter.preprocessors.deregister("html_block")
    converter.inlinePatterns.deregister("html")
    content = converter.convert(text)
    for name in suite.pictures:
        path = folder / f"{name}.png"
        if path.is_file():
            picture = base64.b64encode(path.read_bytes()).decode()
            content = content.replace(
                f'src="{quote(path.name)}"', f'src="data:image/png;base64,{picture}"'
            )
    return render_template("suite.html.jinja", title=suite.name, content=content)


def _search(suite: Suite) -> str:
    """How the runs translate: greedy, beam 5."""
    names = []
    for run in suite.runs:
        generation = DEFAULT_GENERATION | (run.recipe.get("generation") or {})
        names.append(search_name(generation["num_beams"]))
    return " or ".join(dict.fromkeys(names))


def _system_facts(records: SuiteRecords, speeds: dict[str, Speed]) -> dict[str, SystemFacts]:
    finished = records.finished
    facts = {}
    for name in records.suite.rows:
        results = [records.record(run).results for run in finished if run.system == name]
        speed = speeds.get(name)
        parameters = speed.parameters if speed else None
        minutes = None
        updates = None
        if results:
            parameters = results[0]["parameters"]
            seconds = statistics.median(run["training"]["seconds"] for run in results)
            minutes = round(seconds / 60, 1)
            updates = results[0]["training"]["updates"]
        devices = {run["environment"]["device"] for run in results if "environment" in run}
        facts[name] = SystemFacts(
            parameters=parameters,
            relative_speed=round(speed.relative, 3) if speed else None,
            flops=speed.flops if speed else None,
            minutes=minutes,
            updates=updates,
            runs=len(results),
            devices=sorted(devices),
        )
    return facts


def _markdown(
    suite: Suite,
    tables: list[Table],
    facts: dict[str, SystemFacts],
    unfinished: list[str],
    failed: dict[str, str],
    lengths: Lengths | None,
) -> str:
    metric = find_metric(suite.metric)
    form = f".{metric.decimals}f"
    segments_only, single = _systems_without_seeds(suite, tables)
    table_texts = [(table, _score_table(table, form, suite.baseline)) for table in tables]
    segments = chain.from_iterable(table.segments.items() for table in tables)
    few = {column: count for column, count in segments if count < FEW_SEGMENTS}
    devices = chain.from_iterable(fact.devices for fact in facts.values())
    failures = None
    places = None
    if lengths:
        shares = {name: list(kinds.values()) for name, kinds in lengths.failures.items()}
        failures = _length_table(FAILURES, shares, "{:.0%}")
        step = math.ceil(lengths.longest / _MOST_PLACES)
        numbers = map(str, range(1, lengths.longest + 1, step))
        scores = {name: by_place[::step] for name, by_place in lengths.places.items()}
        places = _length_table(numbers, scores, f"{{:{form}}}")
    return render_template(
        "suite.md.jinja",
        suite=suite,
        metric=metric,
        search=_search(suite),
        systems=_system_table(suite, facts),
        devices=sorted(set(map(_plain, devices))),
        segments_only=segments_only,
        single=single,
        few=[f"{_plain(column)} ({count})" for column, count in few.items()],
        tables=table_texts,
        unfinished=unfinished,
        failed=failed,
        lengths=lengths,
        failures=failures,
        places=places,
        kinds=FAILURES,
        curves=CURVES,
        significant=SIGNIFICANT,
        flops=FLOPS,
        form=form,
        shown=_shown,
        plain=_plain,
    )


def _systems_without_seeds(suite: Suite, tables: list[Table]) -> tuple[list[str], list[str]]:
    """Systems whose intervals ignore, or borrow, seed variance."""
    ignoring = []
    borrowing = []
    for name in suite.rows:
        tests = []
        most_seeds = 0
        for table in tables:
            if name not in table.rows:
                continue
            row = table.rows[name]
            scores = row.columns.values()
            tests += [row.pooled, *(score.test for score in scores)]
            most_seeds = max(most_seeds, *(len(score.seeds) for score in scores))
        degrees = [test.degrees for test in tests if test]  # none of the baseline
        if 0 in degrees:
            ignoring.append(_plain(name))
        elif degrees and most_seeds == 1:
            borrowing.append(_plain(name))
    return ignoring, borrowing


def _system_table(suite: Suite, facts: dict[str, SystemFacts]) -> str:
    titles = dict.fromkeys(chain.from_iterable(suite.published.values()))
    heads = ["system", "parameters", "Δ parameters", "speed of training", "minutes a run (median)"]
    heads += ["runs", FLOPS, *(f"published {title}" for title in titles)]
    base = facts[suite.baseline].parameters
    rows = []
    for name, fact in facts.items():
        difference = None
        if name != suite.baseline and base is not None and fact.parameters is not None:
            difference = fact.parameters - base
        cells = [
            name,
            _shown(fact.parameters, ","),
            _shown(difference, "+,"),
            _shown(fact.relative_speed, ".2f", "× "),
            _shown(fact.minutes, ".1f"),
            str(fact.runs),
            _shown(fact.flops / 1e5 if fact.flops else None, ",.0f"),
        ]
        figures = suite.published.get(name, {})
        rows.append(cells + [_plain(str(figures.get(title) or "")) for title in titles])
    return _aligned(heads, rows)


def _length_table(heads: Iterable[str], numbers: dict[str, list[float]], form: str) -> str:
    rows = [[name, *map(form.format, values)] for name, values in numbers.items()]
    return _aligned(["system", *heads], rows)


def _score_table(table: Table, form: str, baseline: str) -> str:
    heads = ["system", *table.columns]
    if len(table.columns) > 1:
        heads.append("mean")
    heads += ["±", f"Δ to {baseline}", "p", "p (Holm)", "p over columns", "vote of the seeds"]
    rows = []
    for name, row in table.rows.items():
        cells = [name, *(_score(row.columns.get(column), form) for column in table.columns)]
        if len(table.columns) > 1:
            # Means over fewer columns than those that have runs are not comparable
            is_whole = len(row.columns) == len(table.segments)
            cells.append(_shown(row.mean if is_whole else None, form))
        cells += [
            _shown(row.between_seeds, form),
            _difference(row.pooled, form),
            _p_value(row.pooled.p_value if row.pooled else None),
            _p_value(row.adjusted, r"\*"),
            _p_value(row.over_columns and row.over_columns[1]),
            _shown(_mean_vote(row), form),
        ]
        rows.append(cells)
    return _aligned(heads, rows)


def _score(score: Score | None, form: str) -> str:
    if score is None:
        return ""
    is_sure = score.adjusted is not None and score.adjusted < SIGNIFICANT
    return _shown(score.score, form) + (r"\*" if is_sure else "")


def _mean_vote(row: Row) -> float | None:
    votes = [score.vote for score in row.columns.values() if score.vote is not None]
    return statistics.mean(votes) if len(votes) == len(row.columns) else None


def _difference(test: PairedTest | None, form: str) -> str:
    if test is None:
        return ""
    values = (test.difference, *test.interval)
    difference, low, high = (_shown(value, f"+{form}") for value in values)
    return f"{difference} [{low}, {high}]"


def _p_value(value: float | None, star: str = "") -> str:
    return "" if value is None else shown_p_value(value).replace("*", star)


def _shown(value: float | None, form: str, before: str = "") -> str:
    return "" if value is None else f"{before}{value:{form}}"


def _aligned(heads: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, numbers to the right."""
    columns = []
    for head, *texts in zip(heads, *rows, strict=True):
        if head not in _OPTIONAL or any(texts):
            columns.append([head, *texts])
    head_line, *lines = map(_line, zip(*columns, strict=True))
    return "\n".join([head_line, "| --- |" + " ---: |" * (len(columns) - 1), *lines])


def _line(texts: Iterable[str]) -> str:
    return "| " + " | ".join(one_line(text).replace("|", r"\|") for text in texts) + " |"


def _plain(text: str) -> str:
    """A program's text in Markdown, with nothing in it read as markup."""
    return re.sub(r"([\\`*<>\[\]|])", r"\\\1", one_line(text))


def _csv(tables: list[Table]) -> str:
    """One line for each table, column, system and seed."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["table", "column", "system", "seed", "score"])
    for table in tables:
        for name, row in table.rows.items():
            for column, score in row.columns.items():
                for seed, value in score.seeds.items():
                    writer.writerow([table.title, column, name, seed, value])
    return file.getvalue()


def _curves(table: Table) -> dict[str, dict[int, list[float]]]:
    """System -> sentences joined -> the scores of its seeds."""
    curves = {}
    for name, row in table.rows.items():
        curves[name] = {
            int(column): list(score.seeds.values()) for column, score in row.columns.items()
        }
    return curves


def differences(table: Table, baseline: str) -> dict[str, dict[str, PairedTest | None]]:
    """Returns the difference to the baseline of all systems but that: of several columns pooled,
    then of each column.
    """
    tests = {}
    for name, row in table.rows.items():
        if name == baseline:
            continue
        row_tests = {POOLED: row.pooled} if len(table.columns) > 1 else {}
        for column in table.columns:
            score = row.columns.get(column)
            row_tests[column] = score.test if score else None
        tests[name] = row_tests
    return tests
