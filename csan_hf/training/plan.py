# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""From a recipe to a plan: checked once and resolved once into data, tokenizers, configuration and
arguments.
"""

from __future__ import annotations

import json
import os
import pkgutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import DatasetDict
from transformers import (
    AutoConfig,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    get_scheduler,
)
from transformers.integrations import get_reporting_integration_callbacks

from csan_hf.data import DataArguments, TokenizerPair, train_tokenizers
from csan_hf.data.corpora import check_files, language_tags
from csan_hf.data.tokenization import (
    DEFAULT_VOCABULARY_SIZE,
    EOS_TOKEN,
    PAD_TOKEN,
    SPECIAL_TOKENS,
    add_language_tags,
    check_vocabulary_sizes,
)
from csan_hf.evaluation.metrics import check_sacrebleu_tokenizer
from csan_hf.families import ModelFamily
from csan_hf.models.translation import language_id
from csan_hf.text_files import reading_folder_or_name

from .arguments import TranslationTrainingArguments, check_bounds
from .recipe import PRETRAINED, Recipe, RecipeError, find_family, refuse_credentials, refusing

DEFAULT_GENERATION = {"num_beams": 5, "max_length": 256}


@dataclass(frozen=True)
class Plan:
    """What a recipe comes to; all that a run does follows from it.

    Args:
        recipe: The recipe, as it is written to the run's folder.
        arguments: The section training.
        data: The section data.
        family: The model family.
        tokenizers: Existing tokenizers; None: they are trained on the data.
        config: The model's configuration, with the vocabularies that the recipe asks for; a small
            corpus may give fewer entries.
        converter: Function that converts `init_from` to the family; None if there is nothing to
            convert.
        generation: The section generation over its defaults.
    """

    recipe: Recipe
    arguments: TranslationTrainingArguments
    data: DataArguments
    family: ModelFamily
    tokenizers: TokenizerPair | None
    config: Any
    converter: str | None
    generation: dict[str, Any]

    def build_tokenizers(self, splits: DatasetDict) -> TokenizerPair:
        """Returns the existing tokenizers, or trains new ones on the training split."""
        if self.tokenizers is not None:
            return self.tokenizers
        with refusing("The section tokenizer is refused"):
            tokenizers = train_tokenizers(splits["train"], **self.recipe.tokenizer)
        add_language_tags(tokenizers, language_tags(self.data.pairs))
        return tokenizers

    def build_model(self, tokenizers: TokenizerPair) -> PreTrainedModel:
        """Builds the model with random weights, or loads `init_from` with the recipe's config on
        top.
        """
        name, given, target = self.recipe.init_from, self.recipe.config, tokenizers.target
        settings, positions = (
            dict(self.generation),
            getattr(self.config, "max_position_embeddings", None),
        )
        if positions and "max_length" not in self.recipe.generation and "max_length" in settings:
            settings["max_length"] = min(settings["max_length"], positions)
        if _is_multilingual(target):
            settings = {
                "forced_bos_token_id": language_id(target, self.data.target_lang),
                **settings,
            }
        if not name:
            model = self.family.model_class(
                _new_config(self.recipe, self.family, _fields_of(tokenizers))
            )
        elif self.converter is not None:
            model = pkgutil.resolve_name(self.converter)(name, **given)
        else:
            model = self.family.model_class.from_pretrained(name, **given)
        if len(tokenizers.source) > model.config.vocab_size:  # language tags were added
            model.resize_token_embeddings(len(tokenizers.source))
        ids = {"pad_token_id": target.pad_token_id, "eos_token_id": target.eos_token_id}
        ids["decoder_start_token_id"] = model.config.decoder_start_token_id
        model.generation_config.update(**{**ids, **settings})
        model.generation_config._from_model_config = False
        return model


def resolve(recipe: Recipe, *, with_data: bool = True) -> Plan:
    """Checks everything in a recipe that needs neither its data nor a model, and resolves it.

    Args:
        recipe: The recipe; `output_dir` must be set.
        with_data: Whether to check that the files of the data are there.

    Raises:
        RecipeError: If something cannot work; the message names the key, its value and what would
            do.
    """
    refuse_credentials(recipe.to_dict(), "the recipe")
    with refusing("The recipe holds half of a character, which no file can hold"):
        json.dumps(recipe.to_dict(), ensure_ascii=False, default=str).encode()
    arguments, data, family = (
        recipe.training_arguments(),
        recipe.data_arguments(),
        find_family(recipe.model),
    )
    _check_initial_folder(recipe.init_from, arguments.output_dir)
    with refusing("The recipe is refused"):
        check_sacrebleu_tokenizer(recipe.bleu_tokenize, "bleu_tokenize")
    if with_data:
        with refusing("The data cannot be used"):
            check_files(data)
    _check_training(arguments)
    generation = {**DEFAULT_GENERATION, **recipe.generation}
    if "max_new_tokens" in recipe.generation and "max_length" not in recipe.generation:
        del generation["max_length"]
    with refusing("The section generation is refused"):
        check_bounds("generation", generation)
        GenerationConfig(**generation).validate(strict=True)
    converter = None
    if recipe.init_from:
        config, converter = _initial_config(recipe, recipe.init_from, family)
    tokenizers, fields = _plan_vocabularies(recipe, data)
    if not recipe.init_from:
        config = _new_config(recipe, family, fields)
    _check_positions(recipe, data, config)
    return Plan(recipe, arguments, data, family, tokenizers, config, converter, generation)


def _check_initial_folder(initial: str | None, output: str) -> None:
    """Checks that a run does not write where it reads from."""
    if not initial or not Path(initial).expanduser().exists():
        return
    read, own = Path(initial).expanduser().resolve(), Path(output).resolve()
    if read.is_relative_to(own) or own.is_relative_to(read):
        raise RecipeError(
            f"output_dir is {output}, and init_from reads {initial}: one lies in the other, and "
            "the run would write over what it starts from. Choose another --output_dir."
        )


# ---- tokenizers


def _fields_of(tokenizers: TokenizerPair) -> dict[str, Any]:
    """Returns what a configuration takes from tokenizers; the ids are the target's."""
    target = tokenizers.target
    return _fields(
        len(tokenizers.source),
        len(target),
        tokenizers.is_joint,
        target.pad_token_id,
        target.eos_token_id,
    )


def _fields(source: int, target: int, is_joint: bool, pad: int, eos: int) -> dict[str, Any]:
    return {
        "vocab_size": source,
        "decoder_vocab_size": target,
        "share_encoder_decoder_embeddings": is_joint,
        "pad_token_id": pad,
        "eos_token_id": eos,
        "decoder_start_token_id": pad,
    }


def _plan_vocabularies(
    recipe: Recipe, data: DataArguments
) -> tuple[TokenizerPair | None, dict[str, Any]]:
    """Loads the tokenizers of `init_from` or `tokenizer.pretrained`, or checks those that are to be
    trained.

    Returns:
        The tokenizers, if they exist, and what a configuration takes from them.
    """
    tags, settings = language_tags(data.pairs), recipe.tokenizer
    target = settings.get(f"{PRETRAINED}_target")
    key, name = (
        ("init_from", recipe.init_from)
        if recipe.init_from
        else ("tokenizer", settings.get(PRETRAINED))
    )
    if name:
        unused = [
            f"tokenizer.{other}"
            for other in settings
            if recipe.init_from or not other.startswith(PRETRAINED)
        ]
        if unused and os.environ.get("RANK", "0") == "0":
            notice = f"{', '.join(unused)} not used: the tokenizer of {name} is taken."
            print(notice, file=sys.stderr, flush=True)
        with (
            refusing(f"{key}: the tokenizer of {name} cannot be loaded"),
            reading_folder_or_name(name, "tokenizer"),
        ):
            tokenizers = TokenizerPair.from_pretrained(name, None if recipe.init_from else target)
            ids, own = tokenizers.target("").input_ids, tokenizers.target
            if own.pad_token is None or own.eos_token_id not in ids:
                raise ValueError(
                    "it has no pad_token, or no eos_token that it adds to a text, so no "
                    "translation would end: set both, let its post-processor add the eos_token, "
                    "and save it again"
                )
        add_language_tags(tokenizers, tags)
        _set_languages(tokenizers, data)
        return tokenizers, _fields_of(tokenizers)
    if target:
        raise RecipeError(
            f"tokenizer.{PRETRAINED}_target is {target}: name the source's, too, in {PRETRAINED}."
        )
    size, joint = (
        int(settings.get("vocab_size", DEFAULT_VOCABULARY_SIZE)),
        bool(settings.get("joint", True)),
    )
    kinds = {"kind": settings.get("kind", "bpe"), "target_kind": settings.get("target_kind")}
    with refusing("The section tokenizer is refused"):
        check_vocabulary_sizes(size, settings.get("target_vocab_size"), joint=joint, **kinds)
    pad, eos = SPECIAL_TOKENS.index(PAD_TOKEN), SPECIAL_TOKENS.index(EOS_TOKEN)
    return None, _fields(size + len(tags), size + (len(tags) if joint else 0), joint, pad, eos)


def _is_multilingual(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Says whether a tokenizer marks languages with tokens of its own, as those of M2M100 and NLLB
    do.
    """
    return hasattr(tokenizer, "src_lang")


def _set_languages(tokenizers: TokenizerPair, data: DataArguments) -> None:
    """Lets multilingual tokenizers mark the languages of the data, and save them."""
    languages = {"src_lang": data.source_lang, "tgt_lang": data.target_lang}
    for tokenizer in filter(_is_multilingual, (tokenizers.source, tokenizers.target)):
        if len(data.pairs) > 1:
            raise RecipeError(
                f"data.language_pairs: {type(tokenizer).__name__} marks one pair of languages: "
                "leave one pair."
            )
        for name, language in languages.items():
            with refusing("data.source_lang and data.target_lang are refused"):
                language_id(tokenizer, language)
            setattr(tokenizer, name, language)
        tokenizer.init_kwargs.update(languages)  # what a saved tokenizer is made with again


# ---- configuration


def _new_config(recipe: Recipe, family: ModelFamily, fields: dict[str, Any]) -> Any:
    if not fields["share_encoder_decoder_embeddings"] and recipe.config.get(
        "share_encoder_decoder_embeddings"
    ):
        raise RecipeError(
            "config.share_encoder_decoder_embeddings needs one vocabulary for both languages: "
            "set tokenizer.joint to true, or leave it out."
        )
    if family.module == "transformers":
        if not fields["share_encoder_decoder_embeddings"]:
            raise RecipeError(
                f"{recipe.model} has one vocabulary for both languages: set tokenizer.joint to "
                "true."
            )
        # Their defaults are tokens of published vocabularies
        fields = {
            **fields,
            "bos_token_id": fields["pad_token_id"],
            "forced_eos_token_id": fields["eos_token_id"],
        }
    with refusing("The section config is refused"):
        return family.config_class(**{**fields, **recipe.config})


def _initial_config(recipe: Recipe, name: str, family: ModelFamily) -> tuple[Any, str | None]:
    """Returns the configuration that `init_from` has with the recipe's config on top, and how to
    convert it.
    """
    with refusing("init_from"), reading_folder_or_name(name, "model"):
        found = AutoConfig.from_pretrained(name, trust_remote_code=False)
    own, converter = family.config_class.model_type, family.converters.get(found.model_type)
    if found.model_type != own and converter is None:
        usable = " or ".join([own, *family.converters])
        raise RecipeError(
            f"init_from: {name} is a {found.model_type} model, which {recipe.model} cannot use; "
            f"name a model of type {usable}."
        )
    with refusing("The section config is refused"):
        if converter:
            convert_config = pkgutil.resolve_name(f"{converter.partition(':')[0]}:convert_config")
            before, config = convert_config(found), convert_config(found, **recipe.config)
        else:
            values, _ = family.config_class.get_config_dict(name)
            before, config = (
                found,
                family.config_class.from_dict({**values, **recipe.config}),
            )  # checked as a whole
        _check_shapes(family.model_class, before, config)
    return config, converter


def _check_shapes(model_class: Any, before: Any, after: Any) -> None:
    """Refuses a config by which weights of a checkpoint would have other shapes than they have."""
    with torch.device("meta"):
        old, new = (dict(model_class(config).named_parameters()) for config in (before, after))
    changed = [name for name in old if name in new and old[name].shape != new[name].shape]
    if changed:
        shapes = " to ".join(str(tuple(weights[changed[0]].shape)) for weights in (old, new))
        raise ValueError(
            f"it changes the shapes of {len(changed)} weights of the checkpoint ({changed[0]} from "
            f"{shapes}); leave out the fields that describe sizes"
        )


def _check_positions(recipe: Recipe, data: DataArguments, config: Any) -> None:
    """Checks that a model with learned positions has one for every token of the longest sentence
    allowed.
    """
    lengths = {
        "data.max_source_length": data.max_source_length,
        "data.max_target_length": data.max_target_length,
    }
    lengths["generation.max_length"] = recipe.generation.get("max_length")
    for name, length in (
        lengths.items() if getattr(config, "position_embeddings", None) == "learned" else ()
    ):
        if (length or 0) > config.max_position_embeddings:
            raise RecipeError(
                f"config.max_position_embeddings is {config.max_position_embeddings}, but {name} "
                f"lets {length} tokens in: raise the first or lower the second."
            )


# ---- training


def _check_training(args: TranslationTrainingArguments) -> None:
    """Makes loggers, an optimizer of one weight and a schedule, as training does only when the data
    are prepared.
    """
    with refusing("The section training is refused: report_to"):
        for logger in get_reporting_integration_callbacks(args.report_to):
            logger()
    if args.optim_target_modules:  # such optimizers ask for the model
        return
    names = ("optim", "optim_args", "lr_scheduler_type", "lr_scheduler_kwargs")
    values = {name: getattr(value := getattr(args, name), "value", value) for name in names}
    shown = ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)
    with refusing(f"The section training is refused: {shown}"):
        optimizer_class, options = Trainer.get_optimizer_cls_and_kwargs(args)
        if not optimizer_class.__module__.startswith(("torch.", "transformers.")):
            optimizer_class, options = torch.optim.SGD, {"lr": args.learning_rate}
        optimizer = optimizer_class([torch.nn.Parameter(torch.zeros(1))], **options)
        specific: Any = args.lr_scheduler_kwargs
        updates = (
            args.max_steps if args.max_steps > 0 else 10**6
        )  # what the epochs come to is known with the data
        schedule = {
            "num_warmup_steps": args.get_warmup_steps(updates),
            "num_training_steps": updates,
        }
        get_scheduler(
            args.lr_scheduler_type, optimizer, **schedule, scheduler_specific_kwargs=specific
        )
