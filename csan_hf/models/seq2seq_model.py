# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Base classes of the families: loading, saving, tying, resizing, forward passes, generation, loss.

Shapes: B sentences, I target and J source positions, V entries of the vocabulary, d width."""

import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.generation import GenerationConfig, GenerationMixin
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.modeling_utils import PreTrainedModel
from transformers.models.marian.modeling_marian import shift_tokens_right
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs, can_return_tuple, logging
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.hub import resolve_revision

from .configuration_seq2seq import Seq2SeqConfig
from .layers import check_tokens
from .translation import TARGET_TOKENIZER_SUBFOLDER, load_target_tokenizer

logger = logging.get_logger(__name__)

IGNORED_LABEL = -100
# Keywords that every forward pass takes: what is recorded, and the form of the output
_COMMON_KEYWORDS = {"output_attentions", "output_hidden_states", "return_dict"}
# Arguments of `from_pretrained` that say where files are, beside a name
LOCATION_OPTIONS = {"cache_dir", "local_files_only", "revision", "subfolder", "token"}
# Names of the embedding that the output projection may be tied to, `shared` first, as the decoder's
# may be tied to it; and of what a file may have instead
_TABLES = [
    "shared.weight",
    "model.shared.weight",
    "decoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
]
_TIED_TO_TABLE = r"^(lm_head|model\.decoder\.embed_tokens)\.weight$"
_TRANSLATION_PIPELINE = {
    "impl": "translation.TranslationPipeline",
    "pt": ["AutoModelForSeq2SeqLM"],
    "type": "text",
}

# The library's name of the cache, which is `cache` here. Before transformers 5.24 what is handed to
# the library has the old name, and outputs have both
CACHE = "cache"
_OLD_NAME_UNTIL = "5.40.0"  # with a warning, as in the library's own models
if CACHE not in Seq2SeqLMOutput.__dataclass_fields__:
    CACHE = "past_key_values"
    _OLD_NAME_UNTIL = "5.0"  # no warning
    ModelOutput.cache = property(lambda output: output.past_key_values)
# Decorator: `past_key_values` works for `cache`
takes_past_key_values = deprecate_kwarg("past_key_values", _OLD_NAME_UNTIL, new_name="cache")


@dataclass
class DecoderOutput(BaseModelOutputWithPastAndCrossAttentions):
    """Output of a decoder; `details` is what its family's model with output projection reads, too:
    of a CSAN what
    is taken from logits in generation, of a Pervasive Attention with `output_attentions` its grid H
    [B, I, J, f_L], zero at padding.
    """

    details: Tensor | None = None


@dataclass
class DetailedModelOutput(Seq2SeqModelOutput):
    """`Seq2SeqModelOutput` with the decoder's `details`."""

    details: Tensor | None = None


class Seq2SeqPreTrained(PreTrainedModel):
    """Base of all models of a family: loading, saving, tied weights, the size of the vocabulary.

    A family's own subclass comes first among the bases of its models:
    `class CsanModel(CsanPreTrainedModel, Seq2SeqModel)`.
    """

    config: Seq2SeqConfig
    config_class: type[Seq2SeqConfig]
    # Further arguments of the encoder, whose output has them for the decoder as `encoder_*`, and of
    # the decoder
    encoder_inputs: ClassVar[tuple[str, ...]] = ()
    decoder_inputs: ClassVar[tuple[str, ...]] = ()
    # FILE.CLASS by Auto class: the classes that a checkpoint offers
    auto_map: ClassVar[dict[str, str]] = {}
    base_model_prefix = "model"
    # Arguments that find other files of the checkpoint, beside its name
    location: dict[str, Any] = {}  # noqa: RUF012
    # Of the family: the class without output projection
    body_class: Any
    translates = True  # whether a checkpoint offers the translation pipeline

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Save the code of a class with a model only if that class is itself registered."""
        super().__init_subclass__(**kwargs)
        cls._auto_class = None

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | os.PathLike | None, *args: Any, **kwargs: Any
    ) -> Any:
        """Load a checkpoint as transformers does; damaged files of weights are an OSError.

        A missing weight, which the library makes a random one, is a ValueError unless
        `output_loading_info=True` or `ignore_mismatched_sizes=True`; so it is in an adapter, and
        always in the model that it is for, which the report leaves out. Not missing are those of a
        head that the class adds, or that fields given here add to the model of the saved config."""
        wants_report = kwargs.pop("output_loading_info", False)
        source = pretrained_model_name_or_path
        load: Any = partial(super().from_pretrained, source, *args, output_loading_info=True)
        try:
            model, report = load(**kwargs)
            tables = [table for table in _TABLES if table in report["missing_keys"]]
            if tables and model.config.tie_word_embeddings and "key_mapping" not in kwargs:
                del model  # or there would be two in memory
                # The file may have it under the name of what is tied to it, unknown to this class
                model, report = load(key_mapping={_TIED_TO_TABLE: tables[0]}, **kwargs)
                model._weight_conversions = None  # saved under its usual name again
        except SafetensorError as error:
            raise OSError(
                f"A file of weights of {str(source)!r} is damaged or incomplete ({error}); copy or "
                "download it again."
            ) from error
        if source is not None:  # but a state dict
            location = {option: kwargs[option] for option in LOCATION_OPTIONS & kwargs.keys()}
            location["revision"] = resolve_revision(
                model.name_or_path,
                location.get("revision"),
                cache_dir=location.get("cache_dir"),
                local_files_only=True,
            )
            model.location = location
            if not (wants_report or kwargs.get("ignore_mismatched_sizes")):
                model.check_weights(source, report["missing_keys"])
            if model._hf_peft_config_loaded and kwargs.get("device_map") != "meta":
                # The report was of the adapter alone
                cls.from_pretrained(model.name_or_path, *args, device_map="meta", **location)
        return (model, report) if wants_report else model

    def check_weights(self, source: str | os.PathLike, missing: set[str]) -> None:
        """Refuse missing weights that the checkpoint should have; all those of an adapter."""
        if missing and not self._hf_peft_config_loaded:
            saved = self.saved_weights()
            missing = {name for name in missing if name.removeprefix("model.") in saved}
        check_complete(source, missing)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the token for a private repository out of copies and files."""
        location = {name: value for name, value in self.location.items() if name != "token"}
        return {**self.__dict__, "location": location}

    def saved_weights(self) -> set[str]:
        """Names, without `model.`, of the weights that the checkpoint has by its saved config.

        Not those of a head that this class adds to the saved one, nor of what was tied and is not
        by the config given here."""
        config = self.config_class.from_pretrained(str(self.name_or_path), **self.location)
        bases: Any = type(self).__mro__
        saved = [base for base in bases if base.__name__ in (config.architectures or [])]
        # Not a user's class, whose `__init__` may take more
        family = [base for base in bases if base.__module__.startswith(__package__)]
        registered = [base for base in family if saved and base._auto_class]
        kind = [*registered, self.body_class][0]
        with torch.device("meta"):
            before = kind(config)
            now = kind(self.config)
        untied = before.tied_weights().keys() - now.tied_weights().keys()
        names = without_prefix(before.state_dict().keys() - untied)
        if type(self) in saved:
            names |= without_prefix(self.state_dict()) - without_prefix(now.state_dict())
        return names

    def save_pretrained(self, save_directory: str | os.PathLike, *args: Any, **kwargs: Any) -> None:
        """Save as transformers does, with code and target tokenizer: it loads without csan_hf."""
        if self._auto_class is not None:
            self.config.auto_map = dict(self.auto_map)
            self.config.custom_pipelines = {}
            if self.translates:
                self.config.custom_pipelines["translation"] = dict(_TRANSLATION_PIPELINE)
        super().save_pretrained(save_directory, *args, **kwargs)
        config_file = Path(save_directory, "config.json")
        if not config_file.is_file():
            return  # not the main process
        # safetensors lets only the owner of its files read them
        for weights in config_file.parent.glob("model*.safetensors"):
            weights.chmod(stat.S_IMODE(config_file.stat().st_mode))
        if self.translates and not self.config.share_encoder_decoder_embeddings:
            keep_target_tokenizer(self, config_file.parent / TARGET_TOKENIZER_SUBFOLDER)

    def tied_weights(self) -> dict[str, str]:
        """Source of each tied weight, both by name, under the current config."""
        if not hasattr(self, "model"):
            return {}
        return {
            f"model.{name}": f"model.{source}" for name, source in self.model.tied_weights().items()
        }

    @property
    def _tied_weights_keys(self) -> dict[str, str]:  # type: ignore[override]
        return self.tied_weights()

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """See transformers; shared embeddings are tied whatever `tie_word_embeddings` is."""
        if all_submodels:
            return super().get_expanded_tied_weights_keys(all_submodels=True)
        return self.tied_weights()

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Change the size of the (shared, or else the source) vocabulary; see transformers."""
        embeddings = super().resize_token_embeddings(*args, **kwargs)
        if self.config.share_encoder_decoder_embeddings:
            self.config.decoder_vocab_size = self.config.vocab_size
        return embeddings


def without_prefix(names: Iterable[str]) -> set[str]:
    """Names of weights without `model.`."""
    return {name.removeprefix("model.") for name in names}


def check_complete(name: str | os.PathLike, missing: Collection[str]) -> None:
    """Refuse a checkpoint without some of its weights, which would be random."""
    if missing:
        raise ValueError(
            f"The checkpoint {str(name)!r} lacks {', '.join(sorted(missing)[:3])} (in all "
            f"{len(missing)}): its file of weights is not the whole model, or its config.json is "
            "another's. Copy or download it again."
        )


def keep_target_tokenizer(model: Seq2SeqPreTrained, folder: Path) -> None:
    """Save the target's tokenizer of the folder that a model came from, once."""
    origin = model.config._name_or_path
    if not folder.is_dir() and os.path.isdir(origin):
        with suppress(OSError, ValueError):
            # False, not None: a save must not stop to ask whether the tokenizer's code may run
            tokenizer = load_target_tokenizer(origin, trust_remote_code=False, **model.location)
            if tokenizer is not None:
                tokenizer.init_kwargs.pop("auto_map", None)  # code that did not run
                tokenizer.save_pretrained(folder)
    if not folder.is_dir():
        logger.warning(
            f"{folder.parent} lacks {folder.name}/: a model does not know its tokenizers. "
            f"`target_tokenizer.save_pretrained({str(folder)!r})` adds the target's."
        )


class Seq2SeqModel(Seq2SeqPreTrained):
    """Base of the model without output projection: `encoder`, perhaps `decoder` and `shared`."""

    encoder: Any
    decoder: Any

    def tied_weights(self) -> dict[str, str]:
        """See `Seq2SeqPreTrained`."""
        if not self.config.share_encoder_decoder_embeddings:
            return {}
        return {
            f"{stack}.embed_tokens.weight": "shared.weight"
            for stack in ("encoder", "decoder")
            if hasattr(self, stack)
        }

    def get_input_embeddings(self) -> nn.Module:
        """The source embedding (the shared one, where shared)."""
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the source embedding, where shared in all its places; it is not scaled."""
        self.encoder.embed_tokens = value
        if self.config.share_encoder_decoder_embeddings:
            self.shared = value
            if hasattr(self, "decoder"):
                self.decoder.embed_tokens = value

    @can_return_tuple
    @takes_past_key_values
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqModelOutput:
        """Encode (unless `encoder_outputs` is given) and decode.

        Args:
            input_ids: Source tokens, [B, J], or `inputs_embeds` [B, J, d]: what
                `get_input_embeddings()` gives.
            attention_mask, decoder_attention_mask: [B, J] and [B, I], 1 = a real token.
            decoder_input_ids: Target tokens, [B, I]; default, of a shared vocabulary: the source
                shifted right. Or `decoder_inputs_embeds` [B, I, d].
            encoder_outputs: Output of the encoder for this source.
            cache: Cache of earlier target positions.
            use_cache: Whether to return a cache.
            **kwargs: `output_attentions`, `output_hidden_states`; see `known_keywords`. Where
                lines count also `line_ids` [B, J], `decoder_line_ids` [B, I]; default: by marks.
        """
        config = self.config
        options = known_keywords(kwargs, self.encoder_inputs + self.decoder_inputs)
        of_encoder = {name: options.pop(name, None) for name in self.encoder_inputs}
        of_decoder = {name: options.pop(name, None) for name in self.decoder_inputs}
        if encoder_outputs is None:
            encoded = self.encoder(
                input_ids, attention_mask, inputs_embeds, return_dict=True, **options, **of_encoder
            )
        elif isinstance(encoder_outputs, BaseModelOutput):
            encoded = encoder_outputs
        else:
            encoded = BaseModelOutput(*encoder_outputs[:3])
        for name, value in of_encoder.items():
            of_decoder[f"encoder_{name}"] = encoded.get(name, value)
        has_targets = decoder_input_ids is not None or decoder_inputs_embeds is not None
        if not has_targets and input_ids is not None and config.share_encoder_decoder_embeddings:
            decoder_input_ids = shift_tokens_right(
                input_ids, config.pad_token_id, config.decoder_start_token_id
            )
        decoder_outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoded.last_hidden_state,
            encoder_attention_mask=attention_mask,
            cache=cache,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            return_dict=True,
            **options,
            **of_decoder,
        )
        return DetailedModelOutput(
            decoder_outputs.last_hidden_state,
            decoder_outputs.cache,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoded.last_hidden_state,
            encoder_hidden_states=encoded.hidden_states,
            encoder_attentions=encoded.attentions,
            details=decoder_outputs.get("details"),
        )


class Seq2SeqForGeneration(Seq2SeqPreTrained, GenerationMixin):
    """Base of the model with output projection: `model` and `lm_head`; it generates."""

    model: Any
    lm_head: Any

    @can_return_tuple
    @takes_past_key_values
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        training_loss: Callable | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqLMOutput:
        """Logits of the next target tokens and, with `labels`, their cross-entropy.

        Args: those of the model without output projection (`Seq2SeqModel.forward`), and
            decoder_input_ids: [B, I]; default: `labels` shifted right.
            labels: [B, I], the tokens to predict, -100 = ignored.
            training_loss: Function of the decoder's states [B, I, d] and the output layer, which
                turns states into logits, that returns the loss.

        Returns `logits` [B, I, V] and the `loss`: the mean over labels, or their sum over the
            Trainer's `num_items_in_batch`. With either both are those of training, whatever
            changes logits in generation. With `training_loss` there is the `loss` alone.
        """
        num_items_in_batch = kwargs.pop("num_items_in_batch", None)
        options = known_keywords(kwargs, self.encoder_inputs + self.decoder_inputs)
        has_targets = decoder_input_ids is not None or decoder_inputs_embeds is not None
        if labels is not None:
            check_tokens(labels, "labels")
            use_cache = False
            if not has_targets:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        # A Trainer that smooths labels takes them out of its inputs, and passes their number alone
        elif num_items_in_batch is not None and not has_targets:
            raise ValueError(
                "Smoothed labels need `decoder_input_ids`: DataCollatorForSeq2Seq(model=model)."
            )
        decoder_attention_mask = self._target_mask(
            decoder_attention_mask, decoder_input_ids, labels
        )
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            cache=cache,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            return_dict=True,
            **options,
        )
        if training_loss is not None:
            return Seq2SeqLMOutput(training_loss(outputs.last_hidden_state, self._project))
        is_scored = labels is not None or num_items_in_batch is not None
        logits = self._project(outputs.last_hidden_state, None if is_scored else outputs.details)
        passed_on = {
            name: value for name, value in outputs.items() if hasattr(Seq2SeqLMOutput, name)
        }
        passed_on["cross_attentions"] = self._explain(
            outputs,
            logits,
            attention_mask=attention_mask,
            labels=labels,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
        )
        loss = None if labels is None else label_loss(logits, labels, num_items_in_batch)
        return Seq2SeqLMOutput(loss, logits, **passed_on)

    def _target_mask(
        self,
        mask: Tensor | None,
        decoder_input_ids: Tensor | None,
        labels: Tensor | None,
    ) -> Tensor | None:
        """The decoder's mask [B, I]; a family may derive it where it is None."""
        return mask

    def _explain(
        self, outputs: Seq2SeqModelOutput, logits: Tensor, **inputs: Tensor | None
    ) -> tuple[Tensor, ...] | None:
        """The `cross_attentions` to return; a family may derive them from logits and inputs."""
        return outputs.cross_attentions

    def _project(self, hidden_states: Tensor, details: Tensor | None = None) -> Tensor:
        """Logits [B, I, V] of the decoder's states [B, I, d] and details (see `DecoderOutput`)."""
        return self.lm_head(hidden_states)

    def tied_weights(self) -> dict[str, str]:
        """See `Seq2SeqPreTrained`."""
        keys = super().tied_weights()
        if self.config.tie_word_embeddings:
            source = "decoder.embed_tokens"
            if self.config.share_encoder_decoder_embeddings:
                source = "shared"
            keys["lm_head.weight"] = f"model.{source}.weight"
        return keys

    def _resize_token_embeddings(self, *sizes: Any) -> nn.Embedding:
        if self.config.share_encoder_decoder_embeddings:
            return super()._resize_token_embeddings(*sizes)
        # The library would also resize the output projection, which belongs to the target
        # vocabulary.
        encoder = self.model.encoder
        encoder.embed_tokens = self._get_resized_embeddings(encoder.embed_tokens, *sizes)
        return encoder.embed_tokens

    def resize_decoder_token_embeddings(self, new_num_tokens: int) -> nn.Embedding:
        """Change the size of the target vocabulary (of both, where shared)."""
        if self.config.share_encoder_decoder_embeddings:
            return self.resize_token_embeddings(new_num_tokens)
        decoder = self.model.decoder
        decoder.embed_tokens = self._get_resized_embeddings(decoder.embed_tokens, new_num_tokens)
        self.lm_head = self._get_resized_lm_head(self.lm_head, new_num_tokens)
        self.config.decoder_vocab_size = new_num_tokens
        self.tie_weights()
        return decoder.embed_tokens

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """The start token, then labels [B, I] but the last; -100 is padding."""
        return shift_tokens_right(
            labels, self.config.pad_token_id, self.config.decoder_start_token_id
        )

    def make_cache(self, num_beams: int) -> Cache:
        """An empty cache of the family's kind; `num_beams` consecutive rows share a source."""
        return self.model.decoder.make_cache()

    def _prepare_cache_for_generation(
        self,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Replace the library's default cache by the family's; any other choice is left alone."""
        is_given = passed_cache(model_kwargs) is not None or generation_config.use_cache is False
        if is_given or generation_config.cache_implementation not in (None, "dynamic"):
            library: Any = super()
            return library._prepare_cache_for_generation(
                generation_config, model_kwargs, *args, **kwargs
            )
        cache = self.make_cache(generation_config.num_beams or 1)
        if generation_config.is_assistant:
            cache.activate_past_recording()
        model_kwargs[CACHE] = cache
        return None

    @property
    def is_tied(self) -> bool:
        """Whether the output projection is an embedding, whatever the config says."""
        output_weight = getattr(self.lm_head, "weight", None)
        return any(output_weight is weight for weight in self.model.parameters())

    def save_pretrained(self, save_directory: str | os.PathLike, *args: Any, **kwargs: Any) -> None:
        """Save with a config that calls the weights tied where they are one tensor."""
        # peft may unset the field, with an adapter
        if self.is_tied:
            self.config.tie_word_embeddings = True
        super().save_pretrained(save_directory, *args, **kwargs)

    def compute_transition_scores(self, *args: Any, **kwargs: Any) -> Tensor:
        """See transformers, which takes the source's `config.vocab_size` for the target's."""
        # Not the model's own config: other threads may be using it
        view = copy(self)
        view.config = copy(self.config)
        view.config.vocab_size = self.config.decoder_vocab_size
        library: Any = super(Seq2SeqForGeneration, view)
        return library.compute_transition_scores(*args, **kwargs)


def label_loss(
    logits: Tensor,
    labels: Tensor,
    num_items_in_batch: Tensor | int | None = None,
) -> Tensor:
    """Cross-entropy of logits [B, I, V] and labels [B, I], summed and divided by `count_labels`."""
    labels = labels.to(logits.device)
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    total = F.cross_entropy(precise.flatten(0, -2), labels.long().flatten(), reduction="sum")
    return total / count_labels(labels, num_items_in_batch)


def count_labels(labels: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor:
    """Denominator of a summed loss: `num_items_in_batch`, or the number of labels; at least 1."""
    count = labels.ne(IGNORED_LABEL).sum() if num_items_in_batch is None else num_items_in_batch
    return torch.as_tensor(count, device=labels.device).clamp(min=1)


def passed_cache(model_kwargs: dict[str, Any]) -> Cache | None:
    """The cache among the arguments of `generate`, which gets the library's name there."""
    if "cache" in model_kwargs:
        model_kwargs[CACHE] = model_kwargs.pop("cache")
    return model_kwargs.get(CACHE)


def known_keywords(keywords: Mapping[str, Any], further: Collection[str] = ()) -> dict[str, Any]:
    """The keywords common to all forward passes, and `further` ones; `TypeError` for any other that
    is not None.

    A newer transformers may rename what it hands over: a forward pass without it would compute
    something else."""
    known = _COMMON_KEYWORDS.union(further)
    for name, value in keywords.items():
        # Tokenizers number segments for models that have embeddings of them
        if value is not None and name not in known and name != "token_type_ids":
            raise TypeError(f"forward() has no argument {name!r}.")
    return {name: value for name, value in keywords.items() if name in known}
