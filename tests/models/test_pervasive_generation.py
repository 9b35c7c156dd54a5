# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Generation with the cache of grid rows equals generation without it, and a step equals the full
forward.
"""

from itertools import pairwise

import pytest
import torch
from tiny import AGGREGATIONS, RESIDUAL, decode_in_steps, padded_sources, padded_targets
from tiny import grid as tiny_model
from torch.testing import assert_close

LENGTHS = (6, 3, 5)
SOURCES = padded_sources(LENGTHS)
STEPS = 14  # kernels reach up to four rows back in two layers: the cache rolls many times
TARGETS = {"decoder_input_ids": padded_targets((STEPS,) * 3)["decoder_input_ids"]}
LONG = 40  # tokens of a generated sentence
TOLERANCE = 1e-5
# Left alone, a tiny model repeats a few words for ever; 31 words have enough pairs for a long
# sentence without.
VARIED = {"no_repeat_ngram_size": 2, "max_new_tokens": LONG, "min_new_tokens": LONG - 2}
WORDS = 31


MODELS = {
    f"{aggregation}, k={kernel_size}": {"aggregation": aggregation, "kernel_size": kernel_size}
    for aggregation in AGGREGATIONS
    for kernel_size in (1, 3, 5)
} | {
    "gated": {"gated": True, "kernel_size": 3},
    "gated, untied, k=7": {
        "gated": True,
        "kernel_size": 7,
        "num_layers": 3,
        "tie_word_embeddings": False,
    },
    "learned positions": {"position_embeddings": "learned", "kernel_size": 3},
    "sinusoidal positions": {"position_embeddings": "sinusoidal", "kernel_size": 3},
    "residual, k=3": {**RESIDUAL, "kernel_size": 3, "position_embeddings": "sinusoidal"},
    "residual, gated_max, k=7": {
        **RESIDUAL,
        "kernel_size": 7,
        "aggregation": "gated_max",
        "scale_embedding": True,
    },
}
every_model = pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)


@every_model
@torch.no_grad()
def test_beam_search(options):
    # k = 1 sees one word: two hypotheses of the same bigrams in another order would have one score,
    # in either order
    if options["kernel_size"] == 1:
        options = {**options, "position_embeddings": "learned"}
    model = tiny_model(seed=1, decoder_vocab_size=WORDS, **options)
    search = {"num_beams": 3, "num_return_sequences": 2, "do_sample": False, **VARIED}
    search |= {"return_dict_in_generate": True, "output_scores": True}
    cached, recomputed = (
        model.generate(**SOURCES, **search, use_cache=use_cache) for use_cache in (True, False)
    )
    assert cached.cache is not None
    assert cached.sequences.shape[1] > LONG - 2
    rows = cached.sequences.tolist()
    assert rows == recomputed.sequences.tolist()
    assert len({tuple(row) for row in rows}) == len(rows), "sentences that differ"
    assert all(len(set(pairwise(row))) > LONG - 4 for row in rows), "words that differ"
    assert_close(cached.sequences_scores, recomputed.sequences_scores, rtol=0, atol=TOLERANCE)
    assert_close(cached.scores, recomputed.scores, rtol=0, atol=1e-4)


@every_model
@pytest.mark.parametrize(
    "chunks",
    [[1] * STEPS, [5, 1, 3, 1, 1, 3], [1, 2, 11], [13, 1]],
    ids=["one row a step", "several rows a step", "a step longer than the cache", "a long prompt"],
)
@torch.no_grad()
def test_steps_equal_the_full_forward(options, chunks):
    model = tiny_model(seed=2, **options)
    full = model(**SOURCES, **TARGETS, use_cache=False, output_attentions=True)
    assert full.logits.std() > 0.1
    assert full.cache is None
    logits, steps = decode_in_steps(model, SOURCES, TARGETS, chunks, output_attentions=True)
    assert_close(logits, full.logits, rtol=0, atol=TOLERANCE)
    assert steps[-1].cache.get_seq_length() == STEPS
    if options.get("aggregation") == "attention":  # the others' words depend on what is in the step
        alignments = torch.cat([step.cross_attentions[0] for step in steps], dim=2)
        assert_close(alignments, full.cross_attentions[0], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("training", [False, True], ids=["with gradients", "in training"])
def test_a_cache_is_refused_where_it_would_be_wrong(training):
    """Kept rows carry no gradient, and a batch's statistics need all rows at once: refused, and not
    by default.
    """
    model = tiny_model().train(training)
    assert model(**SOURCES, **TARGETS).cache is None
    with torch.set_grad_enabled(not training), pytest.raises(ValueError, match="use_cache=False"):
        model(**SOURCES, **TARGETS, use_cache=True)


@torch.no_grad()
def test_a_cache_of_other_sentences_or_another_model_is_refused():
    model = tiny_model(kernel_size=3)
    _, [first] = decode_in_steps(model, SOURCES, TARGETS, [2])
    fewer = {name: tensor[:2] for name, tensor in SOURCES.items()}
    shorter = {name: tensor[:, :4] for name, tensor in SOURCES.items()}
    for other, given in (
        (model, fewer),
        (model, shorter),
        (tiny_model(kernel_size=3, num_layers=1), SOURCES),
    ):
        ids = {"decoder_input_ids": TARGETS["decoder_input_ids"][: len(given["input_ids"])]}
        with pytest.raises(ValueError, match="`cache` must hold"):
            decode_in_steps(other, given, ids, [1], cache=first.cache, start=2)


@pytest.mark.parametrize("lengths", [(0, 3, 6), (2, 1, 4)])
@pytest.mark.parametrize("kernel_size", [1, 3, 5])
@torch.no_grad()
def test_steps_after_a_padded_prompt(kernel_size, lengths):
    """Prompts of unequal length are padded on the left: their rows stay zero in the cache, without
    position.
    """
    model = tiny_model(seed=2, kernel_size=kernel_size, position_embeddings="learned")
    mask = (torch.arange(STEPS) >= torch.tensor(lengths)[:, None]).long()
    targets = {**TARGETS, "decoder_attention_mask": mask}
    full = model(**SOURCES, **targets, use_cache=False).logits
    for chunks in ([7] + [1] * (STEPS - 7), [1] * STEPS, [2, 2, 10]):
        logits, _ = decode_in_steps(model, SOURCES, targets, chunks)
        assert_close(logits[mask.bool()], full[mask.bool()], rtol=0, atol=TOLERANCE)
