"""What a model does with a sentence: where it is local, word alignments, and pictures of both."""

from .alignment import Alignment, align
from .heat_map import draw_heat_map
from .locality_picture import AttentionReach, attention_reaches, draw_locality, grid_reach
from .tokenized_text import TokenizedText

__all__ = [
    "Alignment",
    "AttentionReach",
    "TokenizedText",
    "align",
    "attention_reaches",
    "draw_heat_map",
    "draw_locality",
    "grid_reach",
]
