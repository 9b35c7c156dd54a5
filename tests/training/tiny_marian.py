# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A Marian checkpoint to fine-tune from, as small as can be."""

import torch
from transformers import MarianConfig, MarianMTModel

from csan_hf.data import train_tokenizer


def save_tiny_marian(folder):
    """Saves an untrained Marian model of three encoder layers and its tokenizer, and returns the folder."""
    torch.manual_seed(0)
    tokenizer = train_tokenizer(["ein Hund läuft", "a dog runs"] * 9, 300)
    config = MarianConfig(
        vocab_size=len(tokenizer),
        d_model=16,
        encoder_layers=3,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_position_embeddings=128,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        forced_eos_token_id=None,
    )
    MarianMTModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
