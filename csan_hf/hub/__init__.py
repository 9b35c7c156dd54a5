# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Sharing: self-contained checkpoints, model cards, conversion of foreign checkpoints."""

from .checkpoint import save_self_contained
from .conversion import convert_bart, convert_m2m100, convert_marian, to_marian
from .model_card import build_model_card, card_problems, copy_model_card, write_model_card
from .push import IncompleteCheckpointError, check_checkpoint, push_checkpoint, push_to_hub

__all__ = [
    "IncompleteCheckpointError",
    "build_model_card",
    "card_problems",
    "check_checkpoint",
    "convert_bart",
    "convert_m2m100",
    "convert_marian",
    "copy_model_card",
    "push_checkpoint",
    "push_to_hub",
    "save_self_contained",
    "to_marian",
    "write_model_card",
]
