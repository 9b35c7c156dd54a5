# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The tokenizers of sacreBLEU, and what some of them need."""

from __future__ import annotations

import importlib.util

from sacrebleu.metrics import BLEU

# Module, and how to install it
_NEEDED = {
    "ja-mecab": ("MeCab", "sacrebleu[ja]"),
    "ko-mecab": ("mecab_ko", "sacrebleu[ko]"),
    **dict.fromkeys(("spm", "flores101", "flores200", "spBLEU-1K"), ("sentencepiece", "sentencepiece")),
}


def check_sacrebleu_tokenizer(name: str | None, key: str = "tokenize") -> None:
    """Checks that sacreBLEU has a tokenizer of this name, and that the package it needs is installed.

    Args:
        name: The name; None = sacreBLEU's default.
        key: What the caller calls it, for the message.

    Raises:
        ValueError: If not.
    """
    if name is not None and name not in BLEU.TOKENIZERS:
        raise ValueError(f"{key} must be one of {', '.join(BLEU.TOKENIZERS)}, got {name!r}.")
    module, package = _NEEDED.get(name or "", (None, None))
    if module is not None and importlib.util.find_spec(module) is None:
        raise ValueError(f"{key} is {name!r}, which is not installed here: pip install {package}")
