# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A recipe, checked and resolved once into data, tokenizers, configuration and arguments."""

import math
import pkgutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from datasets import DatasetDict
from datasets.exceptions import DatasetsError
from transformers import (
    AutoConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    get_scheduler,
)
from transformers.integrations import get_reporting_integration_callbacks

from csan_hf.alignment.positions import fixed_positions
from csan_hf.data import (
    DataArguments,
    PreparedCorpus,
    TokenizerPair,
    prepare_corpus,
    train_tokenizers,
)
from csan_hf.data.corpora import check_files, language_tags
from csan_hf.data.tokenization import (
    EOS_TOKEN,
    PAD_TOKEN,
    SPECIAL_TOKENS,
    add_language_tags,
)
from csan_hf.evaluation.metrics import (
    check_sacrebleu_tokenizer,
    check_several_references,
    load_metric,
)
from csan_hf.families import ModelFamily
from csan_hf.models.configuration_seq2seq import Seq2SeqConfig
from csan_hf.models.translation import language_id, max_positions
from csan_hf.pipelines.ensemble import target_size
from csan_hf_runtime.characters import join_ranges
from csan_hf_runtime.text_files import reading_folder_or_name

from .arguments import TranslationTrainingArguments, check_generation
from .recipe import (
    PRETRAINED,
    Recipe,
    RecipeError,
    find_family,
    notify,
    refuse_credentials,
    refusing,
)

DEFAULT_GENERATION = {"num_beams": 5, "max_length": 256}
"""Settings of generation; `max_length` is higher where training targets are longer."""
_PRETRAINED_TARGET = f"{PRETRAINED}_target"


@dataclass(frozen=True)
class Plan:
    """A resolved recipe; everything that a run does follows from it.

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
    config: PreTrainedConfig
    converter: str | None
    generation: dict[str, Any]

    def prepare_corpus(self, tokenizers: TokenizerPair | None = None) -> PreparedCorpus:
        """Returns the corpus cut into tokens, by `tokenizers`, the recipe's existing ones, or those
        trained on the training split.
        """

        def learn(splits: DatasetDict) -> TokenizerPair:
            if "train" not in splits:
                raise ValueError(
                    f"there is no split train, only {', '.join(splits)}: set data.train"
                )
            with refusing("The section tokenizer is refused"):
                trained = train_tokenizers(splits["train"], self.recipe.tokenizer_arguments())
            add_language_tags(trained, language_tags(self.data.pairs))
            return trained

        existing = tokenizers or self.tokenizers
        if existing is not None:
            existing = _naming_lines(existing, self.recipe)
        with refusing("The data cannot be used", DatasetsError):
            return prepare_corpus(self.data, existing, self.recipe.tokenizer, learn)

    def build_model(self, corpus: PreparedCorpus) -> PreTrainedModel:
        """Builds the model with random weights, or loads `init_from` with the recipe's config on
        top; its generation config says what the sources are like.
        """
        tokenizers = corpus.tokenizers
        model = self._load_model(tokenizers)
        if len(tokenizers.source) > model.config.vocab_size:  # language tags were added
            model.resize_token_embeddings(len(tokenizers.source))
        generation = {
            "pad_token_id": tokenizers.target.pad_token_id,
            "eos_token_id": tokenizers.target.eos_token_id,
            "decoder_start_token_id": model.config.decoder_start_token_id,
        }
        if _is_multilingual(tokenizers.target):
            generation["forced_bos_token_id"] = language_id(
                tokenizers.target, self.data.target_lang
            )
        generation |= self.generation
        positions = max_positions(self.config)
        if positions and "max_length" not in self.recipe.generation and "max_length" in generation:
            generation["max_length"] = min(generation["max_length"], positions)
        with refusing("The section generation is refused"):  # a corpus may give fewer tokens
            check_generation(generation, target_size(model.config))
        model.generation_config.update(**generation)
        model.generation_config._from_model_config = False
        self._describe_sources(model, corpus)
        return model

    def _describe_sources(self, model: PreTrainedModel, corpus: PreparedCorpus) -> None:
        """Notes for the pipeline what training sources are like, a base's too; None where that is
        not known.
        """
        settings: Any = model.generation_config
        characters = corpus.characters
        if characters is not None and self.recipe.init_from is not None:
            base = getattr(settings, "source_characters", None)
            characters = None if base is None else join_ranges(base, characters)
        settings.source_characters = characters
        settings.usual_source = None
        if not getattr(model.config, "takes_any_length", False):  # transformers' own lack it
            language, _ = self.data.pairs[0]
            settings.usual_source = corpus.usual_source(language)

    def _load_model(self, tokenizers: TokenizerPair) -> PreTrainedModel:
        name = self.recipe.init_from
        if not name:
            fields = _vocabulary_fields(tokenizers)
            model = self.family.model_class(_new_config(self.recipe, self.family, fields))
        elif self.converter is not None:
            model = pkgutil.resolve_name(self.converter)(name, **self.recipe.config)
        else:
            model = self.family.model_class.from_pretrained(name, **self.recipe.config)
        _set_line_token(model.config, self.recipe, tokenizers)
        return model


def resolve(recipe: Recipe, *, with_data: bool = True) -> Plan:
    """Checks everything in a recipe that needs neither its data nor a model, and resolves the
    recipe.

    Args:
        recipe: The recipe; `output_dir` must be set.
        with_data: Whether to check that the files of the data are there.

    Raises:
        RecipeError: If something cannot work; the message names the key, its value and what is
            allowed.
    """
    refuse_credentials(recipe.to_dict(), "the recipe")
    arguments = recipe.training_arguments()
    data = recipe.data_arguments()
    family = find_family(recipe.model)
    _rehearse_optimizer(arguments)
    if data.is_endless:
        _check_endless(arguments, data, family)
    if data.unlabelled and not arguments.teachers:
        raise RecipeError(
            "data.unlabelled has no translations, which training.teachers make: name them, or "
            "leave it out."
        )
    _check_apart(arguments.output_dir, "init_from", recipe.init_from)
    for teacher in arguments.teachers or ():
        _check_apart(arguments.output_dir, "training.teachers", teacher)
    with refusing("The recipe is refused"):
        check_sacrebleu_tokenizer(recipe.bleu_tokenize, "bleu_tokenize")
        if data.further_references:
            check_several_references(arguments.metrics)
        for name in arguments.metrics:
            load_metric(name).check_requirements()
    if with_data:
        with refusing("The data cannot be used"):
            check_files(data)
    has_validation = data.dataset or data.validation or data.validation_size
    if not has_validation and arguments.eval_strategy != "no":
        raise RecipeError(
            "The data has no validation set: set data.validation, or --validation_size N, or "
            "--eval_strategy no."
        )
    # With the token that starts a target
    longest = max(DEFAULT_GENERATION["max_length"], (data.max_target_length or 0) + 1)
    generation = {**DEFAULT_GENERATION, "max_length": longest, **recipe.generation}
    if "max_new_tokens" in recipe.generation and "max_length" not in recipe.generation:
        del generation["max_length"]
    converter = None
    if recipe.init_from:
        config, converter = _initial_config(recipe, recipe.init_from, family)
        recipe = _with_line_token(recipe, config)
        data = recipe.data_arguments()
    tokenizers, vocabulary_fields = _plan_vocabularies(recipe, data)
    if not recipe.init_from:
        config = _new_config(recipe, family, vocabulary_fields)
    if tokenizers is not None:
        _set_line_token(config, recipe, tokenizers)
    with refusing("The section generation is refused"):
        check_generation(generation, target_size(config))
    with torch.device("meta"):
        positions = fixed_positions(family.model_class(config))
    if positions is not None:
        _check_positions(recipe, data, positions)
    return Plan(
        recipe=recipe,
        arguments=arguments,
        data=data,
        family=family,
        tokenizers=tokenizers,
        config=config,
        converter=converter,
        generation=generation,
    )


def _check_apart(output: str, key: str, name: str | None) -> None:
    """Checks that a run does not write where it reads the model that a key names."""
    if not name or not Path(name).expanduser().exists():
        return
    source = Path(name).expanduser().resolve()
    folder = Path(output).resolve()
    if source.is_relative_to(folder) or folder.is_relative_to(source):
        raise RecipeError(
            f"output_dir is {output}, and {key} reads {name}: one lies in the other, and the run "
            "would write over what it reads. Choose another --output_dir."
        )


def _check_endless(
    arguments: TranslationTrainingArguments, data: DataArguments, family: ModelFamily
) -> None:
    if arguments.teachers:
        raise RecipeError(
            "training.teachers are asked about the whole training set, and data.streaming without "
            "data.train_size has no end: set data.train_size, or leave the teachers out."
        )
    if arguments.max_steps < 1:
        raise RecipeError(
            "data.streaming without data.train_size has no end: set training.max_steps."
        )
    if arguments.eval_strategy == "epoch":
        raise RecipeError(
            "data.streaming has no epochs: set training.eval_strategy to steps or no."
        )
    cost = family.batch_cost
    bound = arguments.batch_bound(family)
    if bound is None:
        raise RecipeError(f"data.streaming needs a bound of batches: set training.max_{cost}.")
    # Its longest pair may come after days
    limits = [math.inf if limit is None else limit for limit in data.length_limits.values()]
    most = math.prod(limits) if cost == "cells" else sum(limits)
    if most > bound:
        raise RecipeError(
            f"data.streaming: a pair as long as data.max_source_length={data.max_source_length} "
            f"and data.max_target_length={data.max_target_length} allow has {most:,} {cost}, more "
            f"than a batch, training.max_{cost}={bound}: lower these limits, or raise that."
        )


def _rehearse_optimizer(args: TranslationTrainingArguments) -> None:
    """Makes an optimizer of one weight and a schedule, which may not be installed or not take
    their arguments.
    """
    if args.optim_target_modules or "lomo" in args.optim:  # such optimizers ask for the model
        return
    # TypeError: a keyword of lr_scheduler_kwargs or optim_args
    with refusing("The section training is refused", TypeError):
        optimizer_class, options = Trainer.get_optimizer_cls_and_kwargs(args)
        if not optimizer_class.__module__.startswith(("torch.", "transformers.")):
            optimizer_class = torch.optim.SGD
            options = {"lr": args.learning_rate}
        optimizer = optimizer_class([torch.nn.Parameter(torch.zeros(1))], **options)
        # The updates that epochs come to are known with the data
        updates = args.max_steps if args.max_steps > 0 else 10**6
        warmup = args.get_warmup_steps(updates)
        scheduler_options: Any = args.lr_scheduler_kwargs
        get_scheduler(
            args.lr_scheduler_type,
            optimizer,
            num_warmup_steps=warmup,
            num_training_steps=updates,
            scheduler_specific_kwargs=scheduler_options,
        )
    if warmup >= updates:
        notify(
            f"training.warmup_steps is {warmup} of {updates} updates: the learning rate does not "
            "reach training.learning_rate. Set fewer, such as a share of all updates, 0.1."
        )


def rehearse_logging(args: TranslationTrainingArguments) -> None:
    """Makes the loggers, which may not be installed."""
    with refusing("The section training is refused: report_to", RuntimeError):
        for logger in get_reporting_integration_callbacks(args.report_to):
            logger()


# ---- tokenizers


def _vocabulary_fields(tokenizers: TokenizerPair) -> dict[str, Any]:
    """Returns what a configuration takes from tokenizers; the ids are the target's."""
    return _fields(
        source_size=len(tokenizers.source),
        target_size=len(tokenizers.target),
        is_joint=tokenizers.is_joint,
        pad=tokenizers.target.pad_token_id,
        eos=tokenizers.target.eos_token_id,
    )


def _fields(
    *, source_size: int, target_size: int, is_joint: bool, pad: int, eos: int
) -> dict[str, Any]:
    return {
        "vocab_size": source_size,
        "decoder_vocab_size": target_size,
        "share_encoder_decoder_embeddings": is_joint,
        "pad_token_id": pad,
        "eos_token_id": eos,
        "decoder_start_token_id": pad,
    }


def _plan_vocabularies(
    recipe: Recipe, data: DataArguments
) -> tuple[TokenizerPair | None, dict[str, Any]]:
    """Loads the tokenizers of `init_from` or `tokenizer.pretrained`, or checks the settings of
    those to be trained.

    Returns:
        The tokenizers, if they exist, and what a configuration takes from them.
    """
    tags = language_tags(data.pairs)
    if recipe.init_from or recipe.tokenizer.get(PRETRAINED):
        _say_unused_keys(recipe)
        tokenizers = _naming_lines(_load_tokenizers(recipe), recipe)
        add_language_tags(tokenizers, tags)
        _set_languages(tokenizers, data)
        return tokenizers, _vocabulary_fields(tokenizers)
    settings = recipe.tokenizer_arguments()
    if settings.pretrained_target is not None:
        raise RecipeError(
            f"tokenizer.pretrained_target is {settings.pretrained_target}: name the source's, too, "
            f"in {PRETRAINED}."
        )
    return None, _fields(
        source_size=settings.vocab_size + len(tags),
        target_size=settings.vocab_size + (len(tags) if settings.joint else 0),
        is_joint=settings.joint,
        pad=SPECIAL_TOKENS.index(PAD_TOKEN),
        eos=SPECIAL_TOKENS.index(EOS_TOKEN),
    )


def _with_line_token(recipe: Recipe, config: PreTrainedConfig) -> Recipe:
    """The recipe with the line token of the model that it starts from, unless it names one."""
    number = getattr(config, "line_token_id", None)
    if number is None or recipe.tokenizer.get("line_token") is not None:
        return recipe
    token = _load_tokenizers(recipe).source.decode([number])
    return replace(recipe, tokenizer={**recipe.tokenizer, "line_token": token})


def _naming_lines(tokenizers: TokenizerPair, recipe: Recipe) -> TokenizerPair:
    """Existing tokenizers with the line token that a recipe names."""
    if recipe.line_token is None:
        return tokenizers
    return replace(tokenizers, line_token=recipe.line_token)


def _set_line_token(config: PreTrainedConfig, recipe: Recipe, tokenizers: TokenizerPair) -> None:
    """Tells the configuration of a network that attends line by line which token ends a line.

    Raises:
        RecipeError: The recipe names none, or one that is no token.
    """
    attends_by_line = getattr(config, "line_method", None) is not None
    if attends_by_line and recipe.line_token is None:
        raise RecipeError(
            "The network attends line by line: name the token that ends a line, "
            "tokenizer.line_token, such as a line feed."
        )
    if recipe.line_token is not None:
        with refusing("The section tokenizer is refused"):
            number = tokenizers.line_token_id
            if attends_by_line:
                config.update({"line_token_id": number})
                config.validate_fields()


def _say_unused_keys(recipe: Recipe) -> None:
    """Says which keys of the section tokenizer are not used where a tokenizer exists."""
    name = recipe.init_from or recipe.tokenizer[PRETRAINED]
    unused = []
    for key in recipe.tokenizer:
        if key != "line_token" and (recipe.init_from or not key.startswith(PRETRAINED)):
            unused.append(f"tokenizer.{key}")
    if unused:
        notify(f"{', '.join(unused)} not used: the tokenizer of {name} is taken.")


def _load_tokenizers(recipe: Recipe) -> TokenizerPair:
    key = "init_from"
    name = recipe.init_from
    target_name = None
    if not name:
        key = "tokenizer"
        name = str(recipe.tokenizer[PRETRAINED])
        target_name = recipe.tokenizer.get(_PRETRAINED_TARGET)
    with (
        refusing(f"{key}: the tokenizer of {name} cannot be loaded"),
        reading_folder_or_name(name, "tokenizer"),
    ):
        tokenizers = TokenizerPair.from_pretrained(name, target_name)
        target = tokenizers.target
        ids = target("").input_ids
        if target.pad_token is None or target.eos_token_id not in ids:
            raise ValueError(
                "it has no pad_token, or no eos_token that it adds to a text, so no "
                "translation would end: set both, let its post-processor add the eos_token, "
                "and save it again"
            )
    return tokenizers


def _is_multilingual(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a tokenizer marks languages with tokens of its own, as M2M100's and NLLB's do."""
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
        tokenizer.init_kwargs.update(languages)  # which are saved


# ---- configuration


def _new_config(
    recipe: Recipe, family: ModelFamily, vocabulary_fields: dict[str, Any]
) -> PreTrainedConfig:
    fields = dict(vocabulary_fields)
    shares = recipe.config.get("share_encoder_decoder_embeddings")
    if shares and not fields["share_encoder_decoder_embeddings"]:
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
        fields["bos_token_id"] = fields["pad_token_id"]
        fields["forced_eos_token_id"] = fields["eos_token_id"]
    with refusing("The section config is refused"):
        return family.config_class(**{**fields, **recipe.config})


def _initial_config(
    recipe: Recipe, name: str, family: ModelFamily
) -> tuple[PreTrainedConfig, str | None]:
    """Returns the configuration that `init_from` has with the recipe's config on top, and how to
    convert it.
    """
    with refusing("init_from"), reading_folder_or_name(name, "model"):
        fields, _ = PreTrainedConfig.get_config_dict(name)
        if not fields or not isinstance(fields, dict):
            raise ValueError(f"{name} has no config.json with keys and values.")
    saved_type = fields.get("model_type", "")
    model_type = family.config_class.model_type
    converter = family.converters.get(saved_type)
    if saved_type != model_type and converter is None:
        usable = " or ".join([model_type, *family.converters])
        raise RecipeError(
            f"init_from: {name} is a {saved_type} model, which {recipe.model} cannot use; "
            f"name a model of type {usable}."
        )
    with refusing("init_from"):
        saved = AutoConfig.from_pretrained(name, trust_remote_code=False)
    with refusing("The section config is refused"):
        if converter:
            convert_config = pkgutil.resolve_name(f"{converter.partition(':')[0]}:convert_config")
            before = convert_config(saved)
            config = convert_config(saved, **recipe.config)
        else:
            before = saved
            # Not from `saved`: the fields are checked together
            config_class = family.config_class
            if issubclass(config_class, Seq2SeqConfig):
                config = config_class.from_dict(fields, **recipe.config)
            else:
                config = config_class.from_dict({**fields, **recipe.config})
        _check_shapes(family.model_class, before, config)
    return config, converter


def _check_shapes(
    model_class: type[PreTrainedModel], before: PreTrainedConfig, after: PreTrainedConfig
) -> None:
    """Refuses a config by which weights of a checkpoint would have other shapes than they have."""
    with torch.device("meta"):
        old_weights = dict(model_class(before).named_parameters())
        new_weights = dict(model_class(after).named_parameters())
    changed = []
    for name, weight in old_weights.items():
        if name in new_weights and new_weights[name].shape != weight.shape:
            changed.append(name)
    if changed:
        name = changed[0]
        raise ValueError(
            f"it changes the shapes of {len(changed)} weights of the checkpoint ({name} from "
            f"{tuple(old_weights[name].shape)} to {tuple(new_weights[name].shape)}); leave out the "
            "fields that describe sizes"
        )


def _check_positions(recipe: Recipe, data: DataArguments, positions: int) -> None:
    """Checks that there is an embedding for every position of the longest sentence allowed."""
    lengths = {
        "data.max_source_length": data.max_source_length,
        "data.max_target_length": data.max_target_length,
        "generation.max_length": recipe.generation.get("max_length"),
    }
    for name, length in lengths.items():
        if length is not None and length > positions:
            raise RecipeError(
                f"config.max_position_embeddings is {positions}, but {name} lets {length} tokens "
                "in: raise the first or lower the second."
            )
