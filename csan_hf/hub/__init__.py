"""Sharing: self-contained checkpoints, model cards, conversion of foreign checkpoints."""

from .attn2d import convert_attn2d
from .checkpoint import save_self_contained
from .marian import convert_marian
from .model_card import build_model_card, write_model_card

__all__ = ["build_model_card", "convert_attn2d", "convert_marian", "save_self_contained", "write_model_card"]
