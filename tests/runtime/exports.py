# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Tiny models of every family that are exported for the tests of the runtime."""

import tiny

EXPORTED = {
    "csan": lambda: tiny.csan(
        seed=2,
        vocab_size=1400,
        encoder_layers=1,
        decoder_locality=[{"window": 3}, None],
        **tiny.PLAIN,
    ),
    "pervasive attention": lambda: tiny.grid(
        seed=2,
        num_layers=1,
        vocab_size=20,
        decoder_vocab_size=40,
        position_embeddings="sinusoidal",  # or scores would be equal where histories are
    ),
    "conv_s2s": lambda: tiny.convolutional(seed=2, encoder_layers=1, decoder_layers=1),
    "rnnsearch": lambda: tiny.recurrent(seed=2),
}
