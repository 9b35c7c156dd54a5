# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Generation with the key/value cache equals generation without it, for every locality."""

import pytest
import torch
from tiny import (
    EVERYWHERE,
    HEADS,
    PAD,
    PLAIN,
    VOCABULARY,
    decode_in_steps,
    padded_sources,
)
from tiny import csan as tiny_model
from torch.testing import assert_close

STEPS = 24  # decoder windows of 5 and 7 roll many times
TOLERANCE = 1e-5


def decoder_inputs(rows: int, length: int = STEPS) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(3, VOCABULARY, (rows, length), generator=generator)
    ids[:, 0] = PAD  # decoder_start_token_id
    return {"decoder_input_ids": ids}


@torch.no_grad()
def test_static_steps_compile_in_one_graph():
    """The whole step is one graph, compiled for the first position and again for the others, and
    never more.
    """
    model = tiny_model(
        **{**EVERYWHERE, "localness_window": "query", "local_window": 5, "head_area": 3}
    )
    torch.compiler.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    sources = padded_sources((6, 3))
    lengths = {"min_new_tokens": 9, "max_new_tokens": 9}
    dynamic = model.generate(**sources, **lengths)
    model.forward = torch.compile(model.forward, backend=backend, fullgraph=True, dynamic=False)
    static = model.generate(
        **sources, **lengths, cache_implementation="static", disable_compile=True
    )
    assert torch.equal(static, dynamic)
    assert len(graphs) == 2


@torch.no_grad()
@pytest.mark.parametrize(("gain", "chunks"), [(0.0, [3, 1, 4]), (0.4, [2, *[1] * 6])])
def test_steps_with_windows_and_sums_compile_in_one_graph(gain, chunks):
    locality = {
        "decoder_locality": [{"window": 5}, None],
        "cross_locality": [
            None,
            {"moving_gaussian": {"width": 3.0, "gain": gain, "ends_within": 1}},
        ],
    }
    model = tiny_model(**{**PLAIN, **locality})
    sources = padded_sources((6, 3))
    targets = decoder_inputs(rows=2, length=8)
    full = model(**sources, **targets, use_cache=False).logits
    torch.compiler.reset()
    model.forward = torch.compile(model.forward, backend="eager", fullgraph=True)
    stepwise, _ = decode_in_steps(model, sources, targets, chunks)
    assert_close(stepwise, full, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("window", [1, 5, 9])
@pytest.mark.parametrize("strategy", [None, "fixed", "query", "head"])
@torch.no_grad()
def test_a_windowed_layer_keeps_only_its_window(window, strategy):
    """The next query sees m keys before itself: nothing older may be kept, in the windowed layer
    alone.
    """
    m = (window - 1) // 2
    model = tiny_model(
        local_window=window,
        localness_window=strategy,
        localness_layers=[],
        decoder_localness_layers=[0],
    )
    sources = padded_sources((9, 4))
    _, steps = decode_in_steps(model, sources, decoder_inputs(rows=2), [1] * STEPS)
    cache = steps[-1].cache
    kept = [layer.keys.shape[-2] for layer in cache.self_attention_cache.layers]
    assert kept[0] <= m + 1
    assert kept[1:] == [STEPS] * (len(kept) - 1)
    assert cache.get_seq_length() == STEPS
    assert cache.cross_attention_cache.layers[0].keys.shape == (2, HEADS, 9, 32 // HEADS)
