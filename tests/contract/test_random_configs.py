# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Random valid configurations and inputs work, and nothing is NaN."""

from typing import Any

import pytest
import tiny
from families import FAMILIES
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

ODD = (1, 3, 5, 7, 11)
DROPOUTS = (0, 0.0, 0.2, 0.9)


def layers_of(depth: int) -> st.SearchStrategy:
    return st.none() | st.lists(st.integers(0, depth - 1), unique=True)


TOKEN = st.integers(0, tiny.TARGET_VOCABULARY - 1)  # which every vocabulary has


@st.composite
def vocabularies(draw: Any) -> dict:
    """Sizes and special tokens."""
    size = draw(st.integers(tiny.TARGET_VOCABULARY, 30))
    shared = draw(st.booleans())
    return {
        "vocab_size": size,
        "decoder_vocab_size": None if shared else draw(st.integers(tiny.TARGET_VOCABULARY, 30)),
        "share_encoder_decoder_embeddings": shared,
        "tie_word_embeddings": draw(st.booleans()),
        "pad_token_id": draw(TOKEN),
        "decoder_start_token_id": draw(TOKEN),
        "eos_token_id": draw(
            TOKEN | st.lists(TOKEN, min_size=1, max_size=2, unique=True) | st.none()
        ),
        "forced_eos_token_id": draw(st.none() | TOKEN),
        "use_cache": draw(st.booleans()),
    }


@st.composite
def csan_configs(draw: Any) -> dict:
    heads, decoder_heads = draw(st.sampled_from([(1, 1), (2, 4), (4, 2), (4, 4)]))
    depth, decoder_depth = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    boundary = draw(st.sampled_from(["mask", "circular"]))
    fewest = min(heads, decoder_heads)
    largest = 2 * fewest - 1 if boundary == "mask" else fewest
    gaussian = draw(st.sampled_from([None, "fixed", "layer", "query", "head"]))
    return {
        **draw(vocabularies()),
        "encoder_layers": depth,
        "decoder_layers": decoder_depth,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": decoder_heads,
        "head_area": draw(st.sampled_from([n for n in ODD if n <= largest])),
        "head_boundary": boundary,
        "localness_window": gaussian,
        "localness_layers": draw(layers_of(depth)),
        "decoder_localness_layers": draw(layers_of(decoder_depth)),
        "cross_localness_layers": draw(layers_of(decoder_depth)) if gaussian else None,
    }


@st.composite
def embeddings(draw: Any) -> dict:
    """Vocabularies, and the widths of two embeddings, whose sum is even."""
    vocabulary = draw(vocabularies())
    source = target = draw(st.integers(1, 6))
    if not vocabulary["share_encoder_decoder_embeddings"]:
        target = draw(st.sampled_from(range(2 - source % 2, 7, 2)))
    return {**vocabulary, "source_embed_dim": source, "target_embed_dim": target}


# Fields that others do not depend on
CSAN = {
    "d_model": st.sampled_from([4, 8, 20]),
    "encoder_ffn_dim": st.integers(1, 20),
    "decoder_ffn_dim": st.just(7),
    "activation_function": st.sampled_from(["relu", "gelu", "silu", "tanh"]),
    "dropout": st.sampled_from([0, 0.0, 0.1, 0.5]),
    "attention_dropout": st.sampled_from([0, 0.0, 0.1, 0.5]),
    "encoder_layerdrop": st.sampled_from([0.0, 0.0, 0.5, 1.0]),
    "decoder_layerdrop": st.sampled_from([0.0, 0.0, 0.5]),
    "normalize_before": st.booleans(),
    "max_position_embeddings": st.sampled_from([1, 5, 64]),
    "initialization": st.sampled_from(["xavier", "normal"]),
    "local_window": st.none() | st.sampled_from(ODD),
    "localness_window_size": st.sampled_from([0.01, 1, 10.0]),
}
PERVASIVE = {
    "block": st.sampled_from(["dense", "residual"]),
    "num_layers": st.integers(1, 3),
    "growth_rate": st.integers(1, 4),
    "ffn_dim": st.integers(1, 9),
    "scale_embedding": st.booleans(),
    "kernel_size": st.sampled_from(ODD),
    "bottleneck_factor": st.integers(1, 4),
    "gated": st.booleans(),
    "aggregation": st.sampled_from(tiny.AGGREGATIONS),
    "dropout": st.sampled_from(DROPOUTS),
    "position_embeddings": st.sampled_from([None, "sinusoidal", "learned"]),
    "max_position_embeddings": st.just(64),
    "batch_norm_momentum": st.sampled_from([0.0, 0.1, 1.0]),
}
RECURRENT = {
    "hidden_size": st.sampled_from([2, 4, 6, 8]),
    "attention": st.sampled_from(["dot", "general", "additive"]),
    "input_feeding": st.booleans(),
    "dropout": st.sampled_from(DROPOUTS),
    "init_std": st.none() | st.sampled_from([0.01, 1]),
}
CONVOLUTIONAL = {
    "embed_dim": st.integers(1, 6),
    "hidden_size": st.integers(1, 6),
    "encoder_layers": st.integers(1, 3),
    "decoder_layers": st.integers(1, 3),
    "kernel_size": st.sampled_from(ODD),
    "dropout": st.sampled_from(DROPOUTS),
    "max_position_embeddings": st.sampled_from([15, 64]),
}
CONFIGS = {
    "csan": (csan_configs(), CSAN),
    "pervasive attention": (embeddings(), PERVASIVE),
    "rnnsearch": (embeddings(), RECURRENT),
    "conv_s2s": (vocabularies(), CONVOLUTIONAL),
}


@st.composite
def batches(draw: Any) -> dict[str, Tensor]:
    """Sentences, one of which may be padding alone, with padding on either side, and labels."""
    pairs = draw(st.lists(st.tuples(st.integers(0, 14), st.integers(1, 14)), max_size=3))
    sources, targets = zip(*pairs, (2, 2), strict=True)  # cells enough for a variance
    batch = tiny.padded_sources(sources, seed=draw(st.integers(0, 1000)))
    if draw(st.booleans()):
        batch = tiny.padded_on_the_left(batch)
    return {**batch, "labels": tiny.labels_of(targets)}


@pytest.mark.parametrize("name", CONFIGS)
def test_valid_configurations_work(name):
    @settings(max_examples=60)
    @given(data=st.data())
    def check(data):
        assert_works(name, data)

    check()


def assert_works(name, data):
    """Loss, gradients, generation with and without beams, and another round through a dictionary."""
    family = FAMILIES[name]
    dependent, independent = CONFIGS[name]
    fields = data.draw(dependent) | data.draw(st.fixed_dictionaries(independent))
    batch = data.draw(batches())
    config = family.config_class(**fields)
    assert family.config_class.from_dict(config.to_dict()).to_dict() == config.to_dict()
    model = family.model_class(config)
    for training in (False, True):
        outputs = model.train(training)(**batch)
        assert outputs.loss.isfinite()
        assert outputs.logits.isfinite().all()
        assert outputs.logits.shape == (*batch["labels"].shape, config.decoder_vocab_size)
        outputs.loss.backward()
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    assert all(buffer.isfinite().all() for buffer in model.buffers())
    batch.pop("labels")
    outputs = model.eval().generate(
        **batch,
        max_new_tokens=4,
        num_beams=data.draw(st.integers(1, 2)),
        return_dict_in_generate=True,
        output_logits=True,
    )
    assert all(step.isfinite().all() for step in outputs.logits)
    assert outputs.sequences.max() < config.decoder_vocab_size
