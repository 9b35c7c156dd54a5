# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""How the outcome of the library's tests is judged."""

from conformance.report import unexplained_skips
from conformance.skips import SKIPS, reason_to_skip


def test_a_skip_that_marian_passed_needs_a_line_in_the_table():
    listed = "test_hidden_states_output"
    rows = {
        "MarianModel": {"test_a": "passed", "test_b": "skipped", "test_c": "passed", listed: "passed"},
        "MarianMTModel": {"test_b": "passed"},
        "CsanModel_1D": {"test_a": "skipped", "test_b": "skipped", "test_c": "passed"},
        "CsanForConditionalGeneration_2D": {"test_a": "skipped", "test_b": "skipped"},
        "PervasiveAttentionModel": {"test_c": "skipped", listed: "skipped"},
    }
    assert unexplained_skips(rows) == [
        "CsanForConditionalGeneration_2D.test_b",
        "CsanModel_1D.test_a",
        "PervasiveAttentionModel.test_c",
    ]


def test_only_listed_tests_are_skipped():
    assert reason_to_skip("PervasiveAttentionModel", "test_hidden_states_output") is not None
    assert reason_to_skip("PervasiveAttentionModel", "test_save_load") is None
    assert reason_to_skip("CsanModel_2D", "test_hidden_states_output") is None
    assert not any(name.startswith(("Csan", "Marian")) for name in SKIPS)
