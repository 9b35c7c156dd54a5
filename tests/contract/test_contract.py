# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Every model, of whatever family, locality and attention implementation, keeps these invariants."""

from functools import partial
from itertools import product

import pytest
import tiny
import torch
import torch.nn.functional as F
from torch.testing import assert_close

IMPLEMENTATIONS = ("eager", "sdpa", "blocked")
# Kernels of Pervasive Attention reach up to four rows back in two layers
GRIDS = {
    **{aggregation: {"aggregation": aggregation} for aggregation in tiny.AGGREGATIONS},
    "k=1": {"kernel_size": 1, "aggregation": "attention", "position_embeddings": "learned"},
    "k=3": {"kernel_size": 3, "position_embeddings": "sinusoidal"},
    "gated, untied, k=7": {
        "gated": True,
        "kernel_size": 7,
        "num_layers": 3,
        "tie_word_embeddings": False,
    },
    "residual": {**tiny.RESIDUAL, "kernel_size": 3, "position_embeddings": "sinusoidal"},
    "residual, gated_max, k=7": {
        **tiny.RESIDUAL,
        "kernel_size": 7,
        "aggregation": "gated_max",
        "position_embeddings": "learned",
        "scale_embedding": True,
    },
}
RECURRENT = {
    "dot": {},
    "general, fed": {"attention": "general", "input_feeding": True, "tie_word_embeddings": False},
    "additive": {"attention": "additive"},
}
CONVOLUTIONAL = {
    "k=1": {"kernel_size": 1},
    "k=3": {"tie_word_embeddings": False},
    "k=5": {"kernel_size": 5, "encoder_layers": 3},
}
LOCALITIES = {
    **tiny.LOCALITIES,
    **{
        f"decoder, {name}": {**tiny.PLAIN, "decoder_locality": [specification, None]}
        for name, specification in tiny.SPECIFICATIONS.items()
    },
    "moving gaussians": {
        **tiny.PLAIN,
        "decoder_locality": [{"window": 5, "relative_bias": True}, {"neighbor": True}],
        "cross_locality": [
            {"moving_gaussian": 3.0},
            {"moving_gaussian": {"width": 3.0, "gain": 0.4, "ends_within": 1}},
        ],
    },
}
MODELS = {
    f"csan, {name}, {implementation}": partial(
        tiny.csan, seed=2, attn_implementation=implementation, **locality
    )
    for (name, locality), implementation in product(LOCALITIES.items(), IMPLEMENTATIONS)
}
for family, variants in (
    (tiny.grid, GRIDS),
    (tiny.recurrent, RECURRENT),
    (tiny.convolutional, CONVOLUTIONAL),
):
    for name, options in variants.items():
        MODELS[f"{family.__name__}, {name}"] = partial(family, seed=2, **options)
every_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
# Those whose caches differ: an encoder's locality is nothing to them
CACHED = {name: make for name, make in MODELS.items() if not name.startswith("csan, encoder")}
every_cache = pytest.mark.parametrize("make", CACHED.values(), ids=CACHED)

LENGTHS = (9, 4, 11, 1)
TARGETS = (7, 10, 3, 1)
STEPS = 20  # the windows of 5 and 7 roll many times
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


@every_model
def test_a_sentence_does_not_notice_its_batch_nor_where_padding_stands(make):
    """Nor a row of padding alone in it, as the last one of an uneven evaluation may be."""
    model = make()
    right = {**tiny.padded_sources((*LENGTHS, 0)), **tiny.padded_targets((*TARGETS, 2))}
    together = model(**right, use_cache=False).logits
    moved = model(**tiny.padded_on_the_left(right), use_cache=False).logits
    for row, (source, target) in enumerate(zip(LENGTHS, TARGETS, strict=True)):
        alone = model(
            input_ids=right["input_ids"][row : row + 1, :source],
            decoder_input_ids=right["decoder_input_ids"][row : row + 1, :target],
        ).logits[0]
        assert_close(together[row, :target], alone, **TOLERANCE)
        assert_close(moved[row, -target:], alone, **TOLERANCE)
    together.square().sum().backward()
    assert together.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in tiny.gradients(model).values())


@every_model
def test_no_gradient_from_future_targets(make):
    model = make()
    width = model.model.decoder.embed_tokens.weight.shape[1]
    embeds = torch.randn(2, 8, width, requires_grad=True)
    sources = tiny.padded_sources((6, 3))
    logits = model(**sources, decoder_inputs_embeds=embeds, use_cache=False).logits
    for i in range(8):
        (gradient,) = torch.autograd.grad(logits[:, i].square().sum(), embeds, retain_graph=True)
        assert (gradient[:, i + 1 :] == 0).all(), f"position {i} sees its future"
        assert (gradient[:, i] != 0).any(dim=-1).all()


@every_cache
@pytest.mark.parametrize("padding", [(0, 0, 0), (0, 3, 6)], ids=["whole", "padded prompts"])
@torch.no_grad()
def test_steps_equal_the_full_forward(make, padding):
    """One position a step, several, more than a cache keeps; prompts are padded on the left."""
    model = make()
    sources = tiny.padded_sources((9, 4, 13))
    targets = tiny.padded_targets((STEPS,) * 3)
    real = torch.arange(STEPS) >= torch.tensor(padding)[:, None]
    targets["decoder_attention_mask"] = real.long()
    full = model(**sources, **targets, use_cache=False).logits
    assert full.std() > 0.1
    for chunks in ([1] * STEPS, [7, 1, 3, 1, 1, 5, 2], [19, 1]):
        logits, steps = tiny.decode_in_steps(model, sources, targets, chunks)
        assert_close(logits[real], full[real], rtol=1e-4, atol=1e-5)
        assert steps[-1].cache.get_seq_length() == STEPS


@every_cache
@torch.no_grad()
def test_beams_from_a_cache_are_those_without(make):
    """A source of padding alone is searched, too."""
    model = make()
    is_csan = model.config.model_type == "csan"
    search = {"num_beams": 3, "min_new_tokens": 9, "max_new_tokens": 9, "output_logits": True}
    search |= {"no_repeat_ngram_size": 2, "return_dict_in_generate": True}
    search["output_attentions"] = is_csan and model.config._attn_implementation == "eager"
    sources = tiny.padded_sources((6, 3, 5, 0))
    whole = model.generate(**sources, **search, use_cache=False)
    caches = [{}]
    if is_csan:  # the others keep features, which a cache of a fixed size cannot hold
        caches.append({"cache_implementation": "static", "disable_compile": True})
    for options in caches:
        stepwise = model.generate(**sources, **search, **options)
        assert torch.equal(stepwise.sequences, whole.sequences)
        assert_close(stepwise.logits, whole.logits, rtol=1e-4, atol=1e-4)
        for layers, all_rows in zip(
            stepwise.decoder_attentions or (), whole.decoder_attentions or (), strict=True
        ):
            for weights, rows in zip(layers, all_rows, strict=True):
                last = F.pad(rows[:, :, -1:], (0, weights.shape[-1] - rows.shape[-1]))
                assert_close(weights, last, rtol=1e-4, atol=1e-5)
