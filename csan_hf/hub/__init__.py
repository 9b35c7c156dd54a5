"""Sharing: self-contained checkpoints, model cards, conversion of foreign checkpoints."""

from .checkpoint import save_self_contained
from .marian import convert_marian
from .model_card import build_model_card, write_model_card

__all__ = ["build_model_card", "convert_marian", "save_self_contained", "write_model_card"]
