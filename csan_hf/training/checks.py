"""What a recipe says that cannot work, found before data is read and before anything is written."""

from __future__ import annotations

import importlib.util

from sacrebleu.metrics import BLEU

from .build import build_config, check_generation, check_positions, check_tokenizer, expected_vocabularies
from .options import RecipeError
from .recipe import Recipe

# What some of sacreBLEU's tokenizers need besides sacreBLEU: module and how to install it
_NEEDED = {
    "ja-mecab": ("MeCab", "sacrebleu[ja]"),
    "ko-mecab": ("mecab_ko", "sacrebleu[ko]"),
    **dict.fromkeys(("spm", "flores101", "flores200", "spBLEU-1K"), ("sentencepiece", "sentencepiece")),
}


def check_recipe(recipe: Recipe) -> None:
    """Checks everything that needs neither the data nor a model; the section training checks itself when it is built.

    Raises:
        RecipeError: if something cannot work; the message names the key, its value and what would do.
    """
    recipe.data_arguments()
    check_bleu_tokenizer(recipe.bleu_tokenize)
    check_generation(recipe)
    if not recipe.init_from:  # a checkpoint has a config and a tokenizer of its own
        check_tokenizer(recipe)
        check_positions(recipe, build_config(recipe, expected_vocabularies(recipe)))


def check_bleu_tokenizer(name: str | None) -> None:
    """Checks that sacreBLEU has a tokenizer, and that what it needs is installed.

    Raises:
        RecipeError: otherwise.
    """
    if name is not None and name not in BLEU.TOKENIZERS:
        raise RecipeError(f"bleu_tokenize must be one of {', '.join(BLEU.TOKENIZERS)}, got {name!r}.")
    module, package = _NEEDED.get(name or "", (None, None))
    if module is not None and importlib.util.find_spec(module) is None:
        raise RecipeError(f"bleu_tokenize is {name!r}, which is not installed here: pip install {package}")
