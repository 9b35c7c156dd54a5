"""What a trained model does with a sentence: word alignments and pictures of them."""

from .alignment import Alignment, align
from .heat_map import draw_heat_map
from .tokenized_text import TokenizedText

__all__ = ["Alignment", "TokenizedText", "align", "draw_heat_map"]
