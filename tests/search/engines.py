# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Engines of every kind, each with a torch model that has the same weights."""

import numpy as np
import tiny
from transformers import T5Config, T5ForConditionalGeneration

from csan_hf import EnsembleForConditionalGeneration
from csan_hf.pipelines.torch_engine import TorchEngine
from csan_hf_runtime.engine import SourceBatch
from csan_hf_runtime.generation import Generation
from csan_hf_runtime.graph_engine import GraphEngine, ModelSettings
from csan_hf_runtime.graphs import Graphs


def t5():
    config = T5Config(
        vocab_size=40,
        d_model=16,
        d_kv=8,
        d_ff=16,
        num_layers=1,
        num_heads=2,
        initializer_factor=20.0,
        decoder_start_token_id=0,
    )
    return T5ForConditionalGeneration(config).eval()


def marian(seed=0):
    return tiny.marian(
        **tiny.transformer_sizes(16, layers=1, heads=2, ffn=16),
        seed=seed,
        vocab_size=40,
        decoder_vocab_size=40,
        max_position_embeddings=64,
        init_std=1.0,
    )


def csan(**options):
    return tiny.csan(seed=2, **options)


LINES = {"line_token_id": 7, "cross_locality": [{"line": True}, {"line": True}]}
MODELS = {
    "csan": csan,
    "csan, windows": lambda: csan(
        decoder_locality=[{"window": 3}, None], encoder_locality=[{"window": 3}, None]
    ),
    "csan, sums": lambda: csan(cross_locality=[None, {"moving_gaussian": 3.0}]),
    "csan, lines": lambda: csan(**LINES),
    "pervasive attention": lambda: tiny.grid(
        seed=2, num_layers=2, vocab_size=20, decoder_vocab_size=40
    ),
    "conv_s2s": lambda: tiny.convolutional(seed=2),
    "rnnsearch": lambda: tiny.recurrent(seed=2),
    "marian": marian,
    "t5": t5,
    "ensemble": lambda: EnsembleForConditionalGeneration.of(
        [marian(), marian(seed=1), csan(vocab_size=40)]
    ),
    "ensemble of lines": lambda: EnsembleForConditionalGeneration.of(
        [csan(**LINES), tiny.csan(seed=3, **LINES)]
    ),
}
"""Models that a `TorchEngine` searches with."""


EXPORTED = ("csan", "pervasive attention", "conv_s2s", "rnnsearch")
"""Models of `exports.py` that a `GraphEngine` searches with."""


def torch_engine(model, **arguments):
    return TorchEngine(model, None, None, **arguments)


def graph_engine(folder):
    return GraphEngine(
        Graphs.from_directory(folder),
        source=None,
        target=None,
        generation=Generation(),
        config=ModelSettings(vocab_size=1),
    )


def source_batch(batch, settings, limits, **options):
    """What `padded_sources` gives, for an engine."""
    ids, mask = (batch[name].numpy() for name in ("input_ids", "attention_mask"))
    return SourceBatch(
        ids, mask, np.array(limits), generation=Generation.from_dict(settings), **options
    )
