# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A pytest plugin: at the end of a run, how the library's tests went for each class, beside Marian in the same run.

It reads the reports, so it works with and without pytest-xdist. The run fails if a class skipped a test that Marian
passed and that is not in the table of skips.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from conformance.library_tests import CHECKOUT_VARIABLE
from conformance.skips import reason_to_skip

_FILE = "conformance/test_conformance.py"
_GENERATIVE = ("CsanForConditionalGeneration", "PervasiveAttentionForConditionalGeneration")

Outcomes = dict[str, dict[str, str]]


def _outcomes(reporter: pytest.TerminalReporter) -> Outcomes:
    """Class -> test -> outcome, where a failed or skipped part decides."""
    order = ("passed", "skipped", "failed")
    rows: Outcomes = {}
    for report in [report for reports in reporter.stats.values() for report in reports]:
        if isinstance(report, pytest.TestReport) and _FILE in report.nodeid and report.nodeid.count("::") == 2:
            _, row, test = report.nodeid.split("::")
            before = rows.setdefault(row, {}).get(test, "passed")
            rows[row][test] = max(before, report.outcome, key=order.index)
    return rows


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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows = _outcomes(terminalreporter)
    if not rows:
        return
    write = terminalreporter.write_line
    terminalreporter.write_sep("=", "transformers' own tests")
    for row in sorted(rows):
        counts = Counter(rows[row].values())
        write(f"{row:<46} {', '.join(f'{count} {outcome}' for outcome, count in sorted(counts.items()))}")
    if not os.environ.get(CHECKOUT_VARIABLE):
        write(f"GenerationTesterMixin is not in the source distribution; {CHECKOUT_VARIABLE}=CHECKOUT runs it, too.")
    write(f"Skipped though Marian passed, and not in skips.py: {', '.join(unexplained_skips(rows)) or 'none'}")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and session.exitstatus == 0 and unexplained_skips(_outcomes(reporter)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
