# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""From a recipe to tokenizers, model and generation settings, with checks that need no data."""

from __future__ import annotations

import math
import pkgutil
from dataclasses import dataclass
from typing import Any

import torch
from datasets import DatasetDict
from transformers import AutoConfig, GenerationConfig, PreTrainedConfig, PreTrainedModel, Trainer, get_scheduler
from transformers.integrations import get_available_reporting_integrations

from csan_hf.data import TokenizerPair, train_tokenizers
from csan_hf.data.corpora import check_files
from csan_hf.data.language_pairs import add_language_tags, language_tags
from csan_hf.data.symbol_tokenizers import EOS_TOKEN, PAD_TOKEN, SPECIAL_TOKENS
from csan_hf.data.tokenization import DEFAULT_VOCABULARY_SIZE, check_vocabulary_sizes
from csan_hf.evaluation.metrics import check_sacrebleu_tokenizer
from csan_hf.text_files import reading_folder_or_name

from .arguments import TranslationTrainingArguments
from .options import RecipeError
from .recipe import PRETRAINED, Recipe, find_family

DEFAULT_GENERATION = {"num_beams": 5, "max_length": 256}


def build_tokenizers(recipe: Recipe, splits: DatasetDict) -> TokenizerPair:
    """Trains the tokenizers on the training split, or loads existing ones (`load_tokenizers`).

    With several target languages, the tags of `csan_hf.data.language_pairs` are added.

    Raises:
        RecipeError: If the section tokenizer is refused.
    """
    try:
        tokenizers = load_tokenizers(recipe) or train_tokenizers(splits["train"], **recipe.tokenizer)
    except ValueError as error:
        raise RecipeError(f"The section tokenizer is refused: {error}") from error
    add_language_tags(tokenizers, language_tags(recipe.data_arguments().pairs))
    return tokenizers


def load_tokenizers(recipe: Recipe) -> TokenizerPair | None:
    """Loads the tokenizers of `init_from`, or else those that `tokenizer.pretrained` names; None to train them.

    Raises:
        RecipeError: If they cannot be loaded, or have no token for padding or the end of a sentence.
    """
    key, name = (
        ("init_from", recipe.init_from) if recipe.init_from else ("tokenizer", recipe.tokenizer.get(PRETRAINED))
    )
    if not name:
        return None
    try:
        with reading_folder_or_name(name, "tokenizer"):
            tokenizers = TokenizerPair.from_pretrained(name)
    except (OSError, ValueError, ImportError) as error:
        raise RecipeError(f"{key}: the tokenizer of {name} cannot be loaded: {error}") from error
    for tokenizer in (tokenizers.source, tokenizers.target):
        for token in ("pad_token", "eos_token"):
            if getattr(tokenizer, token) is None:
                raise RecipeError(f"{key}: the tokenizer of {name} has no {token}, which translation needs.")
    return tokenizers


def note_unused_tokenizer(recipe: Recipe) -> str | None:
    """Returns a notice of tokenizer settings that are not used because the weights come with a tokenizer, or None."""
    if not recipe.init_from or not recipe.tokenizer:
        return None
    return (
        f"tokenizer.{', tokenizer.'.join(recipe.tokenizer)} not used: the weights of {recipe.init_from} go with its "
        "own tokenizer."
    )


def build_model(recipe: Recipe, tokenizers: TokenizerPair) -> PreTrainedModel:
    """Builds the model with random weights, or loads `init_from` with the recipe's config on top.

    Raises:
        RecipeError: If the config is refused, or does not go with the tokenizers.
    """
    family = find_family(recipe.model)
    if recipe.init_from:
        model = _load_initial(recipe, recipe.init_from, family)
        if len(tokenizers.source) > model.config.vocab_size:  # language tags were added
            model.resize_token_embeddings(len(tokenizers.source))
    else:
        model = family.model_class(build_config(recipe, Vocabularies.of(tokenizers)))
    check_positions(recipe, model.config)
    configure_generation(model, recipe, tokenizers)
    return model


@dataclass(frozen=True)
class Vocabularies:
    """What a model's configuration takes from the tokenizers.

    Args:
        source_size: Entries of the source vocabulary.
        target_size: Entries of the target vocabulary.
        is_joint: Whether both are one.
        pad_token_id: Padding of the target.
        eos_token_id: End of a target sentence.
    """

    source_size: int
    target_size: int
    is_joint: bool
    pad_token_id: int
    eos_token_id: int

    @classmethod
    def of(cls, tokenizers: TokenizerPair) -> Vocabularies:
        """Returns the vocabularies of tokenizers."""
        target = tokenizers.target
        return cls(len(tokenizers.source), len(target), tokenizers.is_joint, target.pad_token_id, target.eos_token_id)


def expected_vocabularies(recipe: Recipe) -> Vocabularies:
    """Returns the vocabularies that the recipe asks for; a small corpus may give fewer entries."""
    tags = language_tags(recipe.data_arguments().pairs)
    if (tokenizers := load_tokenizers(recipe)) is not None:
        add_language_tags(tokenizers, tags)
        return Vocabularies.of(tokenizers)
    settings = recipe.tokenizer
    size, joint = int(settings.get("vocab_size", DEFAULT_VOCABULARY_SIZE)), bool(settings.get("joint", True))
    pad, eos = SPECIAL_TOKENS.index(PAD_TOKEN), SPECIAL_TOKENS.index(EOS_TOKEN)
    return Vocabularies(size + len(tags), size + (len(tags) if joint else 0), joint, pad, eos)


def build_config(recipe: Recipe, vocabularies: Vocabularies) -> Any:
    """Builds the model's configuration.

    Raises:
        RecipeError: If the config is refused, or does not go with the vocabularies.
    """
    if not vocabularies.is_joint and recipe.config.get("share_encoder_decoder_embeddings"):
        raise RecipeError(
            "config.share_encoder_decoder_embeddings needs one vocabulary for both languages: "
            "set tokenizer.joint to true, or leave it out."
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
        return find_family(recipe.model).config_class(**values)
    except Exception as error:  # the library's strict configs raise classes of their own
        raise RecipeError(f"The section config is refused: {error}") from error


def planned_config(recipe: Recipe) -> Any:
    """Builds the configuration that the model of a recipe will have, without data and weights.

    Raises:
        RecipeError: If `init_from` cannot be found or is no model to start from, or if the config is refused.
    """
    if not recipe.init_from:
        return build_config(recipe, expected_vocabularies(recipe))
    family = find_family(recipe.model)
    found = _config_of(recipe.init_from)
    try:
        if converter := _converter(found, recipe):
            convert_config = pkgutil.resolve_name(f"{converter.partition(':')[0]}:convert_config")
            before, config = convert_config(found), convert_config(found, **recipe.config)
        else:
            values, _ = family.config_class.get_config_dict(recipe.init_from)
            before, config = found, family.config_class.from_dict({**values, **recipe.config})  # checked as a whole
        _check_shapes(family.model_class, before, config)
    except Exception as error:  # the library's strict configs raise classes of their own
        raise RecipeError(f"The section config is refused: {error}") from error
    return config


def _check_shapes(model_class: Any, before: Any, after: Any) -> None:
    """Refuses a config by which weights of a checkpoint would have other shapes than they have."""
    with torch.device("meta"):
        old, new = (dict(model_class(config).named_parameters()) for config in (before, after))
    changed = [name for name in old if name in new and old[name].shape != new[name].shape]
    if changed:
        shapes = " to ".join(str(tuple(weights[changed[0]].shape)) for weights in (old, new))
        raise ValueError(
            f"it changes the shapes of {len(changed)} weights of the checkpoint ({changed[0]} from {shapes}); leave "
            "out the fields that describe sizes"
        )


def _config_of(name: str) -> Any:
    try:
        with reading_folder_or_name(name, "model"):
            return AutoConfig.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise RecipeError(f"init_from: {error}") from error


def _converter(found: Any, recipe: Recipe) -> str | None:
    """Returns the name of the function that converts init_from to the family; None if it is of the family already.

    Raises:
        RecipeError: If there is no such function.
    """
    family = find_family(recipe.model)
    if found.model_type == family.config_class.model_type:
        return None
    if found.model_type in family.converters:
        return family.converters[found.model_type]
    usable = " or ".join([family.config_class.model_type, *family.converters])
    raise RecipeError(
        f"init_from: {recipe.init_from} is a {found.model_type} model, which {recipe.model} cannot use; name a model "
        f"of type {usable}."
    )


def _load_initial(recipe: Recipe, name: str, family: Any) -> PreTrainedModel:
    if converter := _converter(_config_of(name), recipe):
        return pkgutil.resolve_name(converter)(name, **recipe.config)
    return family.model_class.from_pretrained(name, **recipe.config)


def configure_generation(model: PreTrainedModel, recipe: Recipe, tokenizers: TokenizerPair) -> None:
    """Gives the model the recipe's generation settings, and a default length where none is set.

    Raises:
        RecipeError: If a setting cannot work, or if transformers finds them inconsistent.
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
        RecipeError: If a vocabulary is too small for the bytes and special tokens, if a target vocabulary is described
            beside a joint one, or if a new tokenizer is described beside an existing one.
    """
    if PRETRAINED in recipe.tokenizer:
        if others := [name for name in recipe.tokenizer if name != PRETRAINED]:
            raise RecipeError(
                f"tokenizer.{PRETRAINED} names an existing tokenizer: leave out "
                f"tokenizer.{', tokenizer.'.join(others)}."
            )
        return
    settings = recipe.tokenizer
    try:
        check_vocabulary_sizes(
            settings.get("vocab_size", DEFAULT_VOCABULARY_SIZE),
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
        RecipeError: As in `configure_generation`.
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
    for name in ("repetition_penalty", "encoder_repetition_penalty"):
        if (value := settings.get(name)) is not None and not 0.0 < value < math.inf:
            raise RecipeError(f"The section generation is refused: {name} must be above 0, got {value}.")
    if not math.isfinite(penalty := settings.get("length_penalty") or 0.0):
        raise RecipeError(f"The section generation is refused: length_penalty must be finite, got {penalty}.")
    try:
        config.update(**settings)
        config.validate(strict=True)
    except (ValueError, TypeError, AttributeError) as error:  # the last two if a value has a wrong type
        raise RecipeError(f"The section generation is refused: {error}") from error


def check_positions(recipe: Recipe, config: Any) -> None:
    """Checks that a model with learned positions has one for every token of the longest sentence allowed.

    Raises:
        RecipeError: If it has too few; the message says how many are needed, and which key asks for them.
    """
    if getattr(config, "position_embeddings", None) != "learned":
        return  # sinusoids are computed for any length
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


# ---- the whole recipe


def check_recipe(recipe: Recipe) -> None:
    """Checks everything that needs neither the data nor a model; the section training checks itself when it is built.

    Raises:
        RecipeError: If something cannot work; the message names the key, its value and what would do.
    """
    recipe.data_arguments()
    try:
        check_sacrebleu_tokenizer(recipe.bleu_tokenize, "bleu_tokenize")
    except ValueError as error:
        raise RecipeError(str(error)) from error
    check_reports(recipe.training.get("report_to"))
    check_generation(recipe)
    if not recipe.init_from:  # a checkpoint has a tokenizer of its own
        check_tokenizer(recipe)
    check_positions(recipe, planned_config(recipe))


def check_optimization(args: TranslationTrainingArguments) -> None:
    """Checks optimizer and schedule with one weight: training makes its own only after the data were prepared.

    Raises:
        RecipeError: If one of them is not installed or refuses what it is given.
    """
    if args.optim_target_modules:  # such optimizers ask for the model
        return
    try:
        optimizer_class, options = Trainer.get_optimizer_cls_and_kwargs(args)
        if not optimizer_class.__module__.startswith(("torch.", "transformers.")):
            optimizer_class, options = torch.optim.SGD, {"lr": args.learning_rate}
        optimizer = optimizer_class([torch.nn.Parameter(torch.zeros(1))], **options)
        specific: Any = args.lr_scheduler_kwargs
        updates = args.max_steps if args.max_steps > 0 else 10**6  # what the epochs come to is known with the data
        schedule = {"num_warmup_steps": args.get_warmup_steps(updates), "num_training_steps": updates}
        get_scheduler(args.lr_scheduler_type, optimizer, **schedule, scheduler_specific_kwargs=specific)
    except (TypeError, ValueError, KeyError, ImportError, RuntimeError) as error:
        names = ("optim", "optim_args", "lr_scheduler_type", "lr_scheduler_kwargs")
        values = {name: getattr(value := getattr(args, name), "value", value) for name in names}
        shown = ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)
        raise RecipeError(f"The section training is refused: {shown}: {error}") from error


def check_data_files(recipe: Recipe) -> None:
    """Checks that the files of the data are there, before anything is written.

    Raises:
        RecipeError: If one is missing.
    """
    try:
        check_files(recipe.data_arguments())
    except (ValueError, FileNotFoundError) as error:
        raise RecipeError(f"The data cannot be used: {error}") from error


def check_reports(report_to: str | list[str] | None) -> None:
    """Checks that the loggers that a run reports to are installed.

    Raises:
        RecipeError: If one is not.
    """
    for name in [report_to] if isinstance(report_to, str) else report_to or []:
        if name not in ("none", "all", *get_available_reporting_integrations()):
            raise RecipeError(f"training.report_to is {name!r}, which is not installed here: pip install {name}")
