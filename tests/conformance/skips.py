# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The tests of the library that cannot apply to a model, each with the reason in its architecture.

Pattern of classes -> pattern of test names -> reason. Nothing else in these tests skips anything. The library's own
conditions (no accelerator, no Flash Attention, not a composite model ...) skip for Marian alike; a run in which a
class skips a test that Marian passes and that is not listed here fails.
"""

from fnmatch import fnmatch

_NO_ATTENTION = "convolutions in the place of self-attention: there is no attention implementation to choose or mask"
_ONE_FUNCTION = (
    "dense connections: all layers read and write one feature matrix, in one autograd function that recomputes by "
    "itself; there are no separate layers to wrap in the library's checkpoint function"
)
_ONE_GRID = (
    "a layer adds channels to one grid over target and source; there is no sequence of hidden states, one per layer, "
    "and the encoder is an embedding"
)
_ROWS = "the cache keeps the grid's last rows; there are no keys and values of heads, which a static cache is made of"

SKIPS: dict[str, dict[str, str]] = {
    "PervasiveAttention*": {
        "test_attention_outputs": _NO_ATTENTION,
        "test_can_set_attention_dynamically": _NO_ATTENTION,
        "test_custom_4d_attention_mask": _NO_ATTENTION,
        "test_eager_matches_sdpa_inference_*": _NO_ATTENTION,
        "test_sdpa_can_dispatch_non_composite_models": _NO_ATTENTION,
        "test_capture_outputs_decorator": _ONE_GRID,
        "test_hidden_states_output": _ONE_GRID,
        "test_gradient_checkpointing_enable_disable": _ONE_FUNCTION,
    },
    "PervasiveAttentionForConditionalGeneration": {
        "test_training_gradient_checkpointing*": _ONE_FUNCTION,
        "test_generate_compilation_all_outputs": _ROWS,
        "test_generate_compile_model_forward_fullgraph": _ROWS,
        "test_past_key_values_format": _ROWS,
        "test_static_cache_no_recompile_with_smaller_length": _ROWS,
    },
}


def reason_to_skip(row: str, test: str) -> str | None:
    """Why a test does not apply to a class (the part of a row's name before `_`), or None."""
    for classes, patterns in SKIPS.items():
        if fnmatch(row.partition("_")[0], classes):
            for pattern, reason in patterns.items():
                if fnmatch(test, pattern):
                    return reason
    return None
