# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A pytest plugin: the run fails if a class skipped a test of the library's that Marian passed, and
that is not in the table `SKIPS`.

It reads the reports, so it works with and without pytest-xdist."""

from __future__ import annotations  # for pytest 8.0, which does not export its reporter

import itertools
from fnmatch import fnmatch

import pytest

_FILE = "conformance/test_conformance.py"
_GENERATIVE = tuple(
    f"{family}ForConditionalGeneration"
    for family in ("Csan", "PervasiveAttention", "RnnSearch", "ConvS2S")
)

Outcomes = dict[str, dict[str, str]]

_ONE_FUNCTION = (
    "dense connections: all layers read and write one feature matrix, in one autograd function "
    "that recomputes by itself; there are no separate layers to wrap in the library's checkpoint "
    "function"
)
_ONE_WAY = (
    "test_multimodal_outputs_are_returned "
    "test_attention_outputs test_can_set_attention_dynamically test_eager_matches_sdpa_inference_* "
)
_ONE_WAY += "test_sdpa_can_dispatch_non_composite_models"
# Pattern of classes -> reason in their architecture -> tests that cannot apply to them. They are not
# collected, as are tests of what this machine lacks (an accelerator, Flash Attention ...).
SKIPS = {
    "*": {
        "no model here has experts, rotary positions or parts for several modalities": (
            "test_moe_models_record_router_logits test_output_router_logits_from_config "
            "test_eager_matches_batched_and_grouped_inference* test_model_rope_* "
            "test_vision_axial_rope test_attn_implementation_composite_models "
            "test_can_set_attention_dynamically_composite_model "
            "test_sdpa_can_dispatch_composite_models test_internal_model_config_and_subconfig_are_same"
        ),
        "no model here has a plan for tensor parallelism, weights that stay in float32, a table of "
        "renamed weights, positions that can be resized, or one window for all layers": (
            "test_tp_plan_matches_params test_keep_in_fp32_modules* "
            "test_can_load_from_already_mapped_keys test_reverse_loading_mapping "
            "test_resize_position_vector_embeddings test_sliding_window_mask"
        ),
        "no model here is a decoder alone": "test_causal_lm_loss_honors_shift_labels",
        "tests/contract/test_compile.py compiles training": "test_torch_compile_for_training",
        "the tests of `generate` are not in the source distribution": (
            "test_generation_tester_mixin_inheritance"
        ),
    },
    "*Model*": {
        "encoder and decoder record hidden states of their own; the test asks for one list": (
            "test_can_capture_specific_layers_hidden_states"
        ),
    },
    "*ForConditionalGeneration*": {
        "encoder and decoder record hidden states of their own; the test asks for one list": (
            "test_can_capture_specific_layers_hidden_states"
        ),
    },
    # all but MarianMTModel
    "*[!T]Model*": {
        "without an output projection there is no loss": (
            "test_encoder_decoder_loss_no_double_shift"
        ),
    },
    "CsanFor*Classification*": {
        "a classifier keeps no cache, and has no decoder": (
            "test_bc_cache_name_forward test_encoder_decoder_loss_no_double_shift"
        ),
    },
    "Marian*": {
        "the library tests chosen models alone": "test_can_init_all_missing_weights",
    },
    "PervasiveAttention*": {
        "the cache keeps the grid's last rows, which the library's empty `DynamicCache` cannot take": (
            "test_bc_cache_name_forward"
        ),
        "convolutions in the place of self-attention: there is no attention implementation to choose or mask": (
            f"{_ONE_WAY} test_custom_4d_attention_mask"
        ),
        "a layer adds channels to one grid over target and source; there is no sequence of hidden "
        "states, one per "
        "layer, and the encoder is an embedding": "test_capture_outputs_decorator test_hidden_states_output",
        _ONE_FUNCTION: "test_gradient_checkpointing_enable_disable",
    },
    "PervasiveAttentionForConditionalGeneration": {
        _ONE_FUNCTION: "test_training_gradient_checkpointing*",
    },
    "RnnSearch*": {
        "LSTMs in the place of self-attention: there is no attention implementation to choose": _ONE_WAY,
        "one LSTM on either side: no layer's outputs to record with a hook, and no layers to compute again": (
            "test_capture_outputs_decorator "
            "test_enable_input_require_grads_with_gradient_checkpointing"
        ),
    },
    "ConvS2S*": {
        "convolutions in the place of self-attention: there is no attention implementation to choose": _ONE_WAY,
        "encoder and decoder gather hidden states and attentions in their loops over the layers, "
        "without the hooks of "
        "the library's decorator": "test_capture_outputs_decorator",
    },
}


def reason_to_skip(row: str, test: str) -> str | None:
    """Why a test does not apply to a class, or None."""
    for classes, reasons in SKIPS.items():
        for reason, patterns in reasons.items() if fnmatch(row, classes) else ():
            if any(fnmatch(test, pattern) for pattern in patterns.split()):
                return reason
    return None


def _outcomes(reporter: pytest.TerminalReporter) -> Outcomes:
    """Class -> test -> outcome, where a failed or skipped part decides."""
    order = ("passed", "skipped", "failed")
    rows: Outcomes = {}
    for report in itertools.chain.from_iterable(reporter.stats.values()):
        if (
            isinstance(report, pytest.TestReport)
            and _FILE in report.nodeid
            and report.nodeid.count("::") == 2
        ):
            _, row, test = report.nodeid.split("::")
            before = rows.setdefault(row, {}).get(test, "passed")
            rows[row][test] = max(before, report.outcome, key=order.index)
    return rows


def unexplained_skips(rows: Outcomes) -> list[str]:
    """Tests that Marian passed in the same run and a class skipped, unless the table of skips has
    them.
    """
    unexplained = []
    for row, tests in rows.items():
        if row.startswith("Marian"):
            continue
        beside = rows.get("MarianMTModel" if row.startswith(_GENERATIVE) else "MarianModel", {})
        unexplained += [
            f"{row}.{test}"
            for test in tests
            if tests[test] == "skipped"
            and beside.get(test) == "passed"
            and not reason_to_skip(row, test)
        ]
    return sorted(unexplained)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows = _outcomes(terminalreporter)
    if not rows:
        return
    terminalreporter.write_sep("=", "transformers' own tests")
    terminalreporter.write_line(
        "Skipped though Marian passed, and not in `SKIPS`: "
        f"{', '.join(unexplained_skips(rows)) or 'none'}"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and session.exitstatus == 0 and unexplained_skips(_outcomes(reporter)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
