"""The model families that a recipe can name."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Literal

from .options import RecipeError


@dataclass(frozen=True)
class ModelFamily:
    """Where a family's classes are; they are imported when needed.

    Args:
        module: module of the classes.
        config: name of the configuration class.
        model: name of the class for translation.
        batch_cost: what bounds a training batch: its tokens, or the cells of its source × target grids.
    """

    module: str
    config: str
    model: str
    batch_cost: Literal["tokens", "cells"] = "tokens"

    @property
    def config_class(self) -> Any:
        """The configuration class."""
        return getattr(importlib.import_module(self.module), self.config)

    @property
    def model_class(self) -> Any:
        """The model class."""
        return getattr(importlib.import_module(self.module), self.model)


# To make a new family trainable, add its line here.
FAMILIES: dict[str, ModelFamily] = {
    "csan": ModelFamily("csan_hf", "CsanConfig", "CsanForConditionalGeneration"),
    "pervasive_attention": ModelFamily(
        "csan_hf", "PervasiveAttentionConfig", "PervasiveAttentionForConditionalGeneration", batch_cost="cells"
    ),
}


def get_family(name: Any) -> ModelFamily:
    """Looks a family up.

    Raises:
        RecipeError: if there is none of that name.
    """
    if name not in FAMILIES:
        raise RecipeError(f"model must be one of {', '.join(sorted(FAMILIES))}, got {name!r}.")
    return FAMILIES[name]
