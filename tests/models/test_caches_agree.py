# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Whatever the cache keeps (a window, everything, a static block or nothing), logits and attention weights agree."""

import pytest
import torch
import torch.nn.functional as F
from tiny import EVERYWHERE, LOCALITIES, padded_sources
from tiny import csan as tiny_model

DECODERS = {
    name: options
    for name, options in LOCALITIES.items()
    if name.startswith(("decoder", "cross", "everything")) or name == "plain"
}
NAMES = ("plain", "encoder window", "encoder area", "everything, query")
NEW = 9  # more than any window reaches


def generate(model, **options):
    sources = padded_sources((6, 3))
    return model.generate(
        **sources,
        min_new_tokens=NEW,
        max_new_tokens=NEW,
        num_beams=1,
        output_logits=True,
        output_attentions=True,
        return_dict_in_generate=True,
        **options,
    )


@pytest.mark.parametrize("options", DECODERS.values(), ids=DECODERS)
@torch.no_grad()
def test_dynamic_static_and_no_cache(options):
    model = tiny_model(attn_implementation="eager", **options)
    expected = generate(model, use_cache=False)
    for cache in ({}, {"cache_implementation": "static", "disable_compile": True}):
        output = generate(model, **cache)
        assert torch.equal(output.sequences, expected.sequences)
        torch.testing.assert_close(output.logits, expected.logits, rtol=1e-4, atol=1e-5)
        for step, (layers, full) in enumerate(
            zip(output.decoder_attentions, expected.decoder_attentions, strict=True)
        ):
            for weights, whole in zip(layers, full, strict=True):
                last = F.pad(whole[:, :, -1:], (0, weights.shape[-1] - whole.shape[-1]))
                torch.testing.assert_close(weights, last, rtol=1e-4, atol=1e-5, msg=f"step {step}")


@torch.no_grad()
def test_static_steps_compile_in_one_graph():
    """The whole step is one graph, compiled for the first position and again for the others, and never more."""
    model = tiny_model(**{**EVERYWHERE, "localness_window": "query", "local_window": 5, "head_area": 3})
    torch.compiler.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    sources = padded_sources((6, 3))
    lengths = {"min_new_tokens": NEW, "max_new_tokens": NEW, "num_beams": 1}
    dynamic = model.generate(**sources, **lengths)
    model.forward = torch.compile(model.forward, backend=backend, fullgraph=True, dynamic=False)
    static = model.generate(**sources, **lengths, cache_implementation="static", disable_compile=True)
    assert torch.equal(static, dynamic)
    assert len(graphs) == 2


@pytest.mark.parametrize("options", [LOCALITIES[name] for name in NAMES], ids=NAMES)
def test_gradients_reach_the_attention_weights(options):
    """As with full attention: the output is made from the weights that are returned, padding or not."""
    model = tiny_model(attn_implementation="eager", **options)
    sources = padded_sources((6, 3))
    attentions = model(**sources, labels=sources["input_ids"], output_attentions=True)
    layers = [*attentions.encoder_attentions, *attentions.decoder_attentions, *attentions.cross_attentions]
    for weights, gradient in zip(layers, torch.autograd.grad(attentions.loss, layers), strict=True):
        assert gradient.shape == weights.shape
        assert gradient.any()
