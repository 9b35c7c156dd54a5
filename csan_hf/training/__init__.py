# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Training of translation models: recipes, arguments, trainer, averaging of checkpoints."""

from csan_hf_runtime.extras import needs_extra

with needs_extra("train"):
    from .arguments import TranslationTrainingArguments
    from .checkpoints import average_weights
    from .errors import RecipeError
    from .loss import LabelSmoothedCrossEntropy
    from .recipe import Recipe, load_recipe
    from .run import train_from_recipe
    from .trainer import TranslationTrainer

__all__ = [
    "LabelSmoothedCrossEntropy",
    "Recipe",
    "RecipeError",
    "TranslationTrainer",
    "TranslationTrainingArguments",
    "average_weights",
    "load_recipe",
    "train_from_recipe",
]
