# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The model families, one table: classes, what bounds a batch, how one is described, drawn and
converted to.

A new family is one more entry; training, Auto classes, model cards, pictures and conversions read
the table."""

import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import transformers
from transformers.models.auto.auto_mappings import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES


@dataclass(frozen=True)
class ModelFamily:
    """A family as the rest of the package knows it. Classes and functions are names, imported
    when needed.

    Args:
        module: Module of the classes.
        config: Name of the configuration class; its `model_type` is the family's name.
        classes: Names of the model classes, by the Auto class that finds them;
            `AutoModelForSeq2SeqLM` is the one for translation.
        batch_cost: What bounds a training batch: its tokens, or the cells of its source × target
            grids.
        has_batch_norm: Whether statistics are taken over a batch in training. Such a model has
            `synchronize_batch_norm(group)` and `refresh_batch_statistics(batches)`, counts only
            real target tokens, and cannot be sharded.
        tag: Tag of the family's models on the Hub.
        kind: What model cards call the network.
        papers: Its papers, keys of `hub/templates/papers.bib`.
        describe: Function of the fields of a config and a task that returns what the model card
            says where this depends on the config: `kind`, `papers`, and `grid` or `locality`.
        draw: Function of a config that returns a figure of what each position sees.
        converters: By `model_type` of other families, functions that convert their checkpoints to
            this one.
    """

    module: str
    config: str
    classes: Mapping[str, str]
    batch_cost: Literal["tokens", "cells"] = "tokens"
    has_batch_norm: bool = False
    tag: str = "translation"
    kind: str | None = None
    papers: Sequence[str] = ()
    describe: str | None = None
    draw: str | None = None
    converters: Mapping[str, str] = field(default_factory=dict)

    @property
    def config_class(self) -> Any:
        """The configuration class."""
        return pkgutil.resolve_name(f"{self.module}:{self.config}")

    @property
    def model_class(self) -> Any:
        """The class for translation."""
        return pkgutil.resolve_name(f"{self.module}:{self.classes['AutoModelForSeq2SeqLM']}")

    def register(self) -> None:
        """Registers the classes with transformers' Auto classes, and their code to be saved with a
        model.
        """
        config = self.config_class
        transformers.AutoConfig.register(config.model_type, config, exist_ok=True)
        config.register_for_auto_class()
        for auto, name in self.classes.items():
            model = pkgutil.resolve_name(f"{self.module}:{name}")
            getattr(transformers, auto).register(config, model, exist_ok=True)
            model.register_for_auto_class(auto)


FAMILIES: dict[str, ModelFamily] = {
    "csan": ModelFamily(
        module="csan_hf.models",
        config="CsanConfig",
        classes={
            "AutoModel": "CsanModel",
            "AutoModelForSeq2SeqLM": "CsanForConditionalGeneration",
            "AutoModelForSequenceClassification": "CsanForSequenceClassification",
            "AutoModelForTextEncoding": "CsanEncoderModel",
            "AutoModelForTokenClassification": "CsanForTokenClassification",
        },
        tag="local-attention",
        describe="csan_hf.hub.network_text:describe_csan",
        draw="csan_hf.hub.locality_picture:draw_attention",
        converters={
            "marian": "csan_hf.hub.conversion:convert_marian",
            "m2m_100": "csan_hf.hub.conversion:convert_m2m100",
            "bart": "csan_hf.hub.conversion:convert_bart",
            "mbart": "csan_hf.hub.conversion:convert_bart",
        },
    ),
    "pervasive_attention": ModelFamily(
        module="csan_hf.models",
        config="PervasiveAttentionConfig",
        classes={
            "AutoModel": "PervasiveAttentionModel",
            "AutoModelForSeq2SeqLM": "PervasiveAttentionForConditionalGeneration",
        },
        batch_cost="cells",
        has_batch_norm=True,
        tag="convolutional",
        describe="csan_hf.hub.network_text:describe_pervasive_attention",
        draw="csan_hf.hub.locality_picture:draw_grid",
    ),
    "rnnsearch": ModelFamily(
        module="csan_hf.models",
        config="RnnSearchConfig",
        classes={
            "AutoModel": "RnnSearchModel",
            "AutoModelForSeq2SeqLM": "RnnSearchForConditionalGeneration",
        },
        tag="recurrent",
        kind="RNNsearch, a recurrent encoder-decoder with attention",
        papers=("bahdanau-etal-2015-neural", "luong-etal-2015-effective"),
    ),
    "conv_s2s": ModelFamily(
        module="csan_hf.models",
        config="ConvS2SConfig",
        classes={
            "AutoModel": "ConvS2SModel",
            "AutoModelForSeq2SeqLM": "ConvS2SForConditionalGeneration",
        },
        tag="convolutional",
        kind="ConvS2S, a convolutional encoder-decoder with attention in every decoder layer",
        papers=("gehring-etal-2017-convolutional",),
    ),
}
"""Families by the name that a recipe and a config (`model_type`) give them."""


LIBRARY_TYPES = ("bart", "led", "longt5", "marian", "mt5", "pegasus", "pegasus_x", "t5", "umt5")
"""Types of transformers that recipes train from scratch: text-only, decoder inputs are shifted
labels."""


def family_of(model_type: object) -> ModelFamily:
    """Returns the family of a `model_type`; of transformers' own an entry, with the classes of
    `LIBRARY_TYPES`.
    """
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    if model_type not in LIBRARY_TYPES:
        return ModelFamily("transformers", "PreTrainedConfig", {})
    name = MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES[model_type]
    config = CONFIG_MAPPING_NAMES[model_type]
    kind = f"{name} of transformers"
    return ModelFamily("transformers", config, {"AutoModelForSeq2SeqLM": name}, kind=kind)
