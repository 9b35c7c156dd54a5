# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A pytest plugin: at the end of a run, how the library's tests went for each class, beside Marian in the same run.

It reads the reports, so it works with and without pytest-xdist. The run fails if a class skipped a test that Marian
passed and that is not in the table of skips.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable

import pytest
from conformance.library_tests import CHECKOUT_VARIABLE
from conformance.skips import SKIPS, reason_to_skip

_FILE = "conformance/test_conformance.py"
_GENERATIVE = ("CsanForConditionalGeneration", "PervasiveAttentionForConditionalGeneration")
_WIDTHS = (46, 7, 8, 9, 8)

_MODEL = re.compile(r"<class '[\w.]+'>|\b(Marian|Csan|Pervasive)\w+")

Outcomes = dict[str, dict[str, str]]


def _reports(reporter: pytest.TerminalReporter) -> Iterable[pytest.TestReport]:
    for reports in reporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport) and _FILE in report.nodeid and report.nodeid.count("::") == 2:
                yield report


def _outcomes(reporter: pytest.TerminalReporter) -> tuple[Outcomes, Counter]:
    """Class -> test -> outcome, where a failed or skipped part decides; and how often each reason was given."""
    order = ("passed", "skipped", "failed")
    rows: Outcomes = {}
    reasons: Counter = Counter()
    for report in _reports(reporter):
        _, row, test = report.nodeid.split("::")
        before = rows.setdefault(row, {}).get(test, "passed")
        rows[row][test] = max(before, report.outcome, key=order.index)
        if report.skipped and isinstance(report.longrepr, tuple):
            reasons[_MODEL.sub("the model", report.longrepr[2].removeprefix("Skipped: "))] += 1
    return rows, reasons


def unexplained_skips(rows: Outcomes) -> list[str]:
    """Tests that Marian passed in the same run and a class skipped, unless the table of skips has them."""
    found = []
    for row, tests in rows.items():
        if row.startswith("Marian"):
            continue
        beside = rows.get("MarianMTModel" if row.startswith(_GENERATIVE) else "MarianModel", {})
        found += [
            f"{row}.{test}"
            for test in tests
            if tests[test] == "skipped" and beside.get(test) == "passed" and not reason_to_skip(row, test)
        ]
    return sorted(found)


def _line(*cells: object) -> str:
    first, *others = (str(cell) for cell in cells)
    return first.ljust(_WIDTHS[0]) + "".join(
        cell.rjust(width) for cell, width in zip(others, _WIDTHS[1:], strict=False)
    )


def _rank(row: str) -> tuple[int, str]:
    families = ("Marian", "Csan", "Pervasive")
    return next((number for number, name in enumerate(families) if row.startswith(name)), 9), row


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows, reasons = _outcomes(terminalreporter)
    if not rows:
        return
    write = terminalreporter.write_line
    terminalreporter.write_sep("=", "transformers' own tests")
    write(_line("class (configuration)", "ran", "passed", "skipped", "failed"))
    for row in sorted(rows, key=_rank):
        counts = Counter(rows[row].values())
        name = row.replace("_", " (", 1) + (")" if "_" in row else "")
        ran = counts["passed"] + counts["failed"]
        write(_line(name, ran, counts["passed"], counts["skipped"], counts["failed"]))
    if not os.environ.get(CHECKOUT_VARIABLE):
        write(f"GenerationTesterMixin is not in the source distribution; {CHECKOUT_VARIABLE}=CHECKOUT runs it, too.")
    unexplained = unexplained_skips(rows)
    write(f"Skipped though Marian passed, and not in the table below: {', '.join(unexplained) or 'none'}")
    terminalreporter.write_sep("-", "skipped for the architecture: class, test, reason")
    for classes, patterns in SKIPS.items():
        for pattern, reason in patterns.items():
            write(f"{classes}.{pattern}: {reason}")
    terminalreporter.write_sep("-", "skipped by the library's own conditions, all classes together")
    ours = {reason for patterns in SKIPS.values() for reason in patterns.values()}
    for reason, count in reasons.most_common():
        if reason not in ours:
            write(f"{count:5d} {reason}")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and session.exitstatus == 0 and unexplained_skips(_outcomes(reporter)[0]):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
