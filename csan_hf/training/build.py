"""From a recipe to tokenizers, model and generation settings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from datasets import DatasetDict
from transformers import AutoConfig, GenerationConfig, PreTrainedConfig, PreTrainedModel

from csan_hf.data import TokenizerPair, train_tokenizers
from csan_hf.data.special_tokens import EOS_TOKEN, PAD_TOKEN, SPECIAL_TOKENS
from csan_hf.data.tokenization import check_vocabulary_sizes

from .families import get_family
from .options import RecipeError
from .recipe import Recipe

DEFAULT_TOKENIZER = {"vocab_size": 8000}
DEFAULT_GENERATION = {"num_beams": 5, "max_length": 256}


def build_tokenizers(recipe: Recipe, splits: DatasetDict) -> TokenizerPair:
    """Trains the tokenizers on the training split, or takes those of ``init_from``.

    Raises:
        RecipeError: if the recipe both starts from a checkpoint and describes a tokenizer, or if the section
            tokenizer is refused.
    """
    if recipe.init_from:
        if recipe.tokenizer:
            raise RecipeError(
                f"The section tokenizer cannot be used with init_from: {recipe.init_from} has its own tokenizer."
            )
        return TokenizerPair.from_pretrained(recipe.init_from)
    try:
        return train_tokenizers(splits["train"], **{**DEFAULT_TOKENIZER, **recipe.tokenizer})
    except ValueError as error:
        raise RecipeError(f"The section tokenizer is refused: {error}") from error


def build_model(recipe: Recipe, tokenizers: TokenizerPair) -> PreTrainedModel:
    """Builds the model with random weights, or loads ``init_from`` with the recipe's config on top.

    Raises:
        RecipeError: if the config is refused, or does not go with the tokenizers.
    """
    family = get_family(recipe.model)
    if recipe.init_from:
        model = _load_initial(recipe, recipe.init_from, family)
    else:
        model = family.model_class(build_config(recipe, Vocabularies.of(tokenizers)))
    check_positions(recipe, model.config)
    configure_generation(model, recipe, tokenizers)
    return model


@dataclass(frozen=True)
class Vocabularies:
    """What a model's configuration takes from the tokenizers.

    Args:
        source_size: entries of the source vocabulary.
        target_size: entries of the target vocabulary.
        is_joint: whether both are one.
        pad_token_id: padding of the target.
        eos_token_id: end of a target sentence.
    """

    source_size: int
    target_size: int
    is_joint: bool
    pad_token_id: int
    eos_token_id: int

    @classmethod
    def of(cls, tokenizers: TokenizerPair) -> Vocabularies:
        """Those of trained tokenizers."""
        target = tokenizers.target
        return cls(len(tokenizers.source), len(target), tokenizers.is_joint, target.pad_token_id, target.eos_token_id)


def expected_vocabularies(recipe: Recipe) -> Vocabularies:
    """The vocabularies that the recipe asks for: a small corpus may give fewer entries."""
    settings = {**DEFAULT_TOKENIZER, **recipe.tokenizer}
    size = int(settings["vocab_size"])
    pad, eos = SPECIAL_TOKENS.index(PAD_TOKEN), SPECIAL_TOKENS.index(EOS_TOKEN)
    return Vocabularies(size, size, bool(settings.get("joint", True)), pad, eos)


def build_config(recipe: Recipe, vocabularies: Vocabularies) -> Any:
    """Builds the model's configuration.

    Raises:
        RecipeError: if the config is refused, or does not go with the vocabularies.
    """
    if not vocabularies.is_joint and recipe.config.get("share_encoder_decoder_embeddings"):
        raise RecipeError(
            "config.share_encoder_decoder_embeddings needs one vocabulary for both languages: "
            "set tokenizer.joint to true, or drop it."
        )
    values = {
        "vocab_size": vocabularies.source_size,
        "decoder_vocab_size": vocabularies.target_size,
        "share_encoder_decoder_embeddings": vocabularies.is_joint,
        "pad_token_id": vocabularies.pad_token_id,
        "eos_token_id": vocabularies.eos_token_id,
        "decoder_start_token_id": vocabularies.pad_token_id,
        **recipe.config,
    }
    try:
        return get_family(recipe.model).config_class(**values)
    except Exception as error:  # the library's strict configs raise classes of their own
        raise RecipeError(f"The section config is refused: {error}") from error


def _load_initial(recipe: Recipe, name: str, family: Any) -> PreTrainedModel:
    found = AutoConfig.from_pretrained(name)
    if found.model_type == family.config_class.model_type:
        return family.model_class.from_pretrained(name, **recipe.config)
    if found.model_type == "marian" and recipe.model == "csan":
        from csan_hf.hub.marian import convert_marian

        return convert_marian(name, **recipe.config)
    raise RecipeError(f"init_from: {name} is a {found.model_type} model, which {recipe.model} cannot use.")


def configure_generation(model: PreTrainedModel, recipe: Recipe, tokenizers: TokenizerPair) -> None:
    """Gives the model the recipe's generation settings, and a length where nobody named one.

    Raises:
        RecipeError: if a setting cannot work, or if transformers finds them inconsistent.
    """
    config: GenerationConfig = model.generation_config
    target = tokenizers.target
    _update_generation(
        config,
        {
            "pad_token_id": target.pad_token_id,
            "eos_token_id": target.eos_token_id,
            "decoder_start_token_id": model.config.decoder_start_token_id,
            **_generation_settings(recipe, model.config),
        },
    )
    config._from_model_config = False


def check_tokenizer(recipe: Recipe) -> None:
    """Checks the section tokenizer without data.

    Raises:
        RecipeError: if a vocabulary is too small for what every one holds, or if there is one for both languages and
            another one for the target.
    """
    settings = {**DEFAULT_TOKENIZER, **recipe.tokenizer}
    try:
        check_vocabulary_sizes(
            settings["vocab_size"],
            settings.get("target_vocab_size"),
            joint=settings.get("joint", True),
            kind=settings.get("kind", "bpe"),
            target_kind=settings.get("target_kind"),
        )
    except ValueError as error:
        raise RecipeError(f"The section tokenizer is refused: {error}") from error


def check_generation(recipe: Recipe) -> None:
    """Checks the section generation without a model.

    Raises:
        RecipeError: as `configure_generation`.
    """
    _update_generation(GenerationConfig(), _generation_settings(recipe))


def _generation_settings(recipe: Recipe, config: PreTrainedConfig | None = None) -> dict[str, Any]:
    settings = dict(DEFAULT_GENERATION)
    if "max_new_tokens" in recipe.generation:
        del settings["max_length"]
    positions = getattr(config, "max_position_embeddings", None)
    if positions and "max_length" in settings:
        settings["max_length"] = min(settings["max_length"], positions)
    return {**settings, **recipe.generation}


def _update_generation(config: GenerationConfig, settings: dict[str, Any]) -> None:
    # max_length counts the token that generation starts with
    for name, least in (("num_beams", 1), ("max_length", 2), ("max_new_tokens", 1)):
        value = settings.get(name)
        if value is not None and value < least:
            raise RecipeError(f"The section generation is refused: {name} must be at least {least}, got {value}.")
    if (number := settings.get("num_return_sequences") or 1) != 1:
        raise RecipeError(
            f"The section generation is refused: num_return_sequences must be 1, got {number}: one translation of "
            "each sentence is scored."
        )
    for name in ("repetition_penalty", "encoder_repetition_penalty"):
        if (value := settings.get(name)) is not None and not 0.0 < value < math.inf:
            raise RecipeError(f"The section generation is refused: {name} must be above 0, got {value}.")
    if not math.isfinite(penalty := settings.get("length_penalty") or 0.0):
        raise RecipeError(f"The section generation is refused: length_penalty must be finite, got {penalty}.")
    try:
        config.update(**settings)
        config.validate(strict=True)
    except (ValueError, TypeError, AttributeError) as error:  # the last two: of a value of a type it cannot have
        raise RecipeError(f"The section generation is refused: {error}") from error


def check_positions(recipe: Recipe, config: Any) -> None:
    """Checks that a model with learned positions has one for every token that the recipe lets in.

    Raises:
        RecipeError: if it has too few; the message says how many are needed, and by what.
    """
    if getattr(config, "position_embeddings", None) != "learned":
        return  # sinusoids are made as far as they are needed
    data = recipe.data_arguments()
    wanted = {
        "data.max_source_length": data.max_source_length,
        "data.max_target_length": data.max_target_length,
        "generation.max_length": recipe.generation.get("max_length"),
    }
    for name, length in wanted.items():
        if length is not None and length > config.max_position_embeddings:
            raise RecipeError(
                f"config.max_position_embeddings is {config.max_position_embeddings}, but {name} lets {length} tokens "
                f"in: raise the first or lower the second."
            )
