# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What the families share: loading, saving, tying, resizing, the cache of generation, loss.

Shapes: B sentences, T positions, I target positions, V entries of the vocabulary, d width."""

import difflib
import inspect
import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import nn
from transformers import AutoTokenizer
from transformers.cache_utils import Cache
from transformers.generation import GenerationConfig
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple, logging
from transformers.utils.deprecation import deprecate_kwarg

from .layers import check_tokens

if TYPE_CHECKING:
    # Never run: transformers copies the files that relative imports name, and the pipeline belongs
    # to a checkpoint.
    from .translation import TranslationPipeline  # noqa: F401

logger = logging.get_logger(__name__)

TARGET_TOKENIZER_SUBFOLDER = "target_tokenizer"
IGNORED_LABEL = -100
# Taken by every forward pass: what is recorded, and the form of the output
_TAKEN_BY_ALL = {"output_attentions", "output_hidden_states", "return_dict"}
# The name of `cache` before transformers 5.24, which the library's own models take as long
takes_past_key_values = deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")


class Seq2SeqPreTrained:
    """Mixin of a family's `PreTrainedModel`: loading, saving, tied weights and the size of
    vocabularies.
    """

    config: Any
    auto_map: ClassVar[
        dict[str, str]
    ] = {}  # the classes that a checkpoint offers: FILE.CLASS by Auto class
    base_model_prefix: ClassVar[str] = "model"
    translates: ClassVar[bool] = True  # whether it offers the translation pipeline, too

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """The code of a class is saved with a model if that class is itself registered
        (`register_for_auto_class`).
        """
        super().__init_subclass__(**kwargs)
        cls._auto_class = None  # type: ignore[attr-defined]

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load a checkpoint as transformers does; damaged files of weights are an OSError.

        A missing weight, which the library makes a random one, is a ValueError unless
        `output_loading_info=True`."""
        wants_report = kwargs.pop("output_loading_info", False)
        source, load = pretrained_model_name_or_path, super().from_pretrained  # type: ignore[misc]
        try:
            model, report = load(source, *args, output_loading_info=True, **kwargs)
        except SafetensorError as error:
            broken = f"A file of weights of {str(source)!r} is damaged or incomplete ({error})"
            raise OSError(f"{broken}; copy or download it again.") from error
        # Other fields or another class (a classifier of a translator) have new weights by
        # intention.
        by_intention = {
            "config",
            "state_dict",
            *cls.config_class.__dataclass_fields__,
        } & kwargs.keys()  # type: ignore[attr-defined]
        missing = sorted(report["missing_keys"])
        if (
            missing
            and not wants_report
            and not by_intention
            and model.config.architectures == [cls.__name__]
        ):
            raise ValueError(
                f"The checkpoint {str(source)!r} lacks "
                f"{', '.join(missing[:3])}{', ...' if missing[3:] else ''}: its file of weights is "
                "not the whole model, or its config.json is another's. Copy or download it again."
            )
        return (model, report) if wants_report else model

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save as transformers does, with code and the target's tokenizer, so that it loads without
        csan_hf.
        """
        directory = Path(save_directory)
        if self._auto_class is not None:  # type: ignore[attr-defined]
            self.config.auto_map = dict(self.auto_map)
            pipeline = {
                "impl": "translation.TranslationPipeline",
                "pt": ["AutoModelForSeq2SeqLM"],
                "type": "text",
            }
            self.config.custom_pipelines = {"translation": pipeline} if self.translates else {}
        super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]
        if not (directory / "config.json").is_file():
            return  # not the main process
        for weights in directory.glob(
            "model*.safetensors"
        ):  # safetensors lets only their owner read them
            weights.chmod(stat.S_IMODE((directory / "config.json").stat().st_mode))
        if self.translates and not getattr(self.config, "share_encoder_decoder_embeddings", True):
            _keep_target_tokenizer(self.config, directory / TARGET_TOKENIZER_SUBFOLDER)

    def _check_and_adjust_attn_implementation(
        self, attn_implementation: str | None, *args: Any, **kwargs: Any
    ) -> Any:
        """Refuse a choice that would have no effect; the library's own error would suggest to ask
        for support.
        """
        if attn_implementation not in (None, "eager") and not self._supports_sdpa:  # type: ignore[attr-defined]
            raise ValueError(
                f"{self.config.model_type} attends in one way: leave {attn_implementation=} unset."
            )
        return super()._check_and_adjust_attn_implementation(attn_implementation, *args, **kwargs)  # type: ignore[misc]

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> Any:
        """The tied weights under the current config; shared embeddings are tied whatever
        `tie_word_embeddings` is.
        """
        if all_submodels:
            return super().get_expanded_tied_weights_keys(all_submodels=True)  # type: ignore[misc]
        return dict(self._tied_weights_keys)

    @property
    def _tied_weights_keys(self) -> dict[str, str]:
        keys = self.model._tied_weights_keys if hasattr(self, "model") else {}
        return {f"model.{name}": f"model.{source}" for name, source in keys.items()}

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> Any:
        """Change the size of the (shared, or else the source) vocabulary; see transformers."""
        embeddings = super().resize_token_embeddings(*args, **kwargs)  # type: ignore[misc]
        if self.config.share_encoder_decoder_embeddings:
            self.config.decoder_vocab_size = self.config.vocab_size  # one vocabulary has one size
        return embeddings


def _keep_target_tokenizer(config: Any, folder: Path) -> None:
    """Save the second tokenizer of the folder (not repository) that a config came from to `folder`,
    once.
    """
    origin = getattr(config, "_name_or_path", "")
    with suppress(OSError, ValueError):
        if not folder.is_dir() and os.path.isdir(origin):
            # False, not None: a save must not stop to ask whether the tokenizer's code may run
            tokenizer = AutoTokenizer.from_pretrained(
                origin, subfolder=folder.name, trust_remote_code=False
            )
            tokenizer.save_pretrained(folder)
    if not folder.is_dir():
        logger.warning(
            f"{folder.parent} lacks {folder.name}/: the target has a vocabulary of its own, and a "
            "model does not know its tokenizers. "
            f"`target_tokenizer.save_pretrained({str(folder)!r})` adds it; that of a Hub model is "
            f"`AutoTokenizer.from_pretrained({origin or 'NAME'!r}, subfolder={folder.name!r})`."
        )


class Seq2SeqEmbeddings:
    """Mixin of the model without output projection, which has `encoder`, perhaps `decoder`, and
    perhaps `shared`.
    """

    config: Any
    encoder: Any
    decoder: Any

    @property
    def _tied_weights_keys(self) -> dict[str, str]:
        parts = [part for part in ("encoder", "decoder") if hasattr(self, part)]
        shared = self.config.share_encoder_decoder_embeddings
        return {f"{part}.embed_tokens.weight": "shared.weight" for part in parts if shared}

    def get_input_embeddings(self) -> Any:
        """The source embedding (the shared one, where shared)."""
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: Any) -> None:
        """Replace the source embedding (the shared one in all its places, where shared); used as it
        is, not scaled.
        """
        self.encoder.embed_tokens = value
        if self.config.share_encoder_decoder_embeddings:
            self.shared = value
            if hasattr(self, "decoder"):
                self.decoder.embed_tokens = value

    def get_decoder_input_embeddings(self) -> Any:
        """The target embedding."""
        return self.decoder.embed_tokens

    def set_decoder_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the target embedding (of separate vocabularies); used as it is, not scaled."""
        self.decoder.embed_tokens = value

    @can_return_tuple
    @takes_past_key_values
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
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
            encoder_outputs: What the encoder returned for this source.
            cache: Cache of earlier target positions.
            use_cache: Whether to return a cache.
            **kwargs: `output_attentions`, `output_hidden_states` and what else transformers passes
                on.
        """
        options = known_keywords(kwargs, type(self).forward)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids, attention_mask, inputs_embeds, return_dict=True, **options
            )
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs[:3])
        config, has_targets = (
            self.config,
            decoder_input_ids is not None or decoder_inputs_embeds is not None,
        )
        if not has_targets and input_ids is not None and config.share_encoder_decoder_embeddings:
            decoder_input_ids = shift_tokens_right(
                input_ids, config.pad_token_id, config.decoder_start_token_id
            )
        decoder_outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoder_outputs[0],
            encoder_attention_mask=attention_mask,
            cache=cache,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            return_dict=True,
            **options,
        )
        return self._join(encoder_outputs, decoder_outputs)

    def _join(self, encoder_outputs: Any, decoder_outputs: Any) -> Seq2SeqModelOutput:
        """One output of the encoder's and the decoder's."""
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            cache=decoder_outputs.cache,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )


class Seq2SeqHead:
    """Mixin of the model with output projection, which has `model` and `lm_head` and generates."""

    config: Any
    model: Any
    lm_head: Any
    loss_function: Callable[..., torch.Tensor]

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        # The class name would choose the causal loss, which shifts the labels once more.
        self.loss_type = "ForMaskedLM"

    @can_return_tuple
    @takes_past_key_values
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqLMOutput:
        """Logits of the next target tokens and, with `labels`, their cross-entropy.

        Args: those of the model without output projection (`Seq2SeqEmbeddings.forward`), and
            decoder_input_ids: [B, I]; default: `labels` shifted right.
            labels: [B, I], the tokens to predict, -100 = ignored.

        Returns `logits` [B, I, V] and the `loss`: the mean over labels, or their sum over the
            Trainer's `num_items_in_batch`.
        """
        num_items_in_batch = kwargs.pop("num_items_in_batch", None)
        options = known_keywords(kwargs, type(self).forward)
        if labels is not None:
            check_tokens(labels, "labels")
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
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
        logits = self._project(outputs.last_hidden_state)
        inputs = {
            "decoder_input_ids": decoder_input_ids,
            "decoder_attention_mask": decoder_attention_mask,
        }
        passed_on = {
            name: value for name, value in outputs.items() if hasattr(Seq2SeqLMOutput, name)
        }
        passed_on["cross_attentions"] = self._explain(
            outputs, logits, attention_mask=attention_mask, labels=labels, **inputs
        )
        loss = None if labels is None else self.label_loss(logits, labels, num_items_in_batch)
        return Seq2SeqLMOutput(loss=loss, logits=logits, **passed_on)

    def _target_mask(
        self,
        mask: torch.Tensor | None,
        decoder_input_ids: torch.Tensor | None,
        labels: torch.Tensor | None,
    ) -> torch.Tensor | None:
        """The decoder's mask [B, I] where a family derives it; else the given one."""
        return mask

    def _explain(self, outputs: Any, logits: torch.Tensor, **inputs: torch.Tensor | None) -> Any:
        """The `cross_attentions` of `outputs`, or what a family makes of them, the logits and the
        inputs.
        """
        return outputs.cross_attentions

    def _project(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Logits [B, I, V] of the decoder's states [B, I, d]."""
        logits: torch.Tensor = self.lm_head(hidden_states)
        return logits

    @property
    def _tied_weights_keys(self) -> dict[str, str]:
        keys: dict[str, str] = super()._tied_weights_keys  # type: ignore[misc]
        source = (
            "shared" if self.config.share_encoder_decoder_embeddings else "decoder.embed_tokens"
        )
        return (
            {**keys, "lm_head.weight": f"model.{source}.weight"}
            if self.config.tie_word_embeddings
            else keys
        )

    def _resize_token_embeddings(self, *sizes: Any) -> Any:
        parent: Any = super()
        if self.config.share_encoder_decoder_embeddings:
            return parent._resize_token_embeddings(*sizes)
        # The library would also resize the output projection, which belongs to the target
        # vocabulary.
        self.model.encoder.embed_tokens = parent._get_resized_embeddings(
            self.model.encoder.embed_tokens, *sizes
        )
        return self.model.encoder.embed_tokens

    def resize_decoder_token_embeddings(self, new_num_tokens: int) -> Any:
        """Change the size of the target vocabulary (of both, where shared)."""
        this: Any = self
        if self.config.share_encoder_decoder_embeddings:
            return this.resize_token_embeddings(new_num_tokens)
        embeddings = this._get_resized_embeddings(self.model.decoder.embed_tokens, new_num_tokens)
        self.model.decoder.embed_tokens = embeddings
        self.lm_head = this._get_resized_lm_head(self.lm_head, new_num_tokens)
        self.config.decoder_vocab_size = new_num_tokens
        this.tie_weights()
        return self.model.decoder.embed_tokens

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """See `shift_tokens_right`."""
        return shift_tokens_right(
            labels, self.config.pad_token_id, self.config.decoder_start_token_id
        )

    def label_loss(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor,
        num_items_in_batch: torch.Tensor | int | None,
    ) -> torch.Tensor:
        """The loss of logits [B, I, V] and labels [B, I], summed and divided by `count_labels`."""
        count = count_labels(labels, num_items_in_batch)
        labels = labels.long().contiguous()
        if logits.dtype == torch.float64:  # which the library's functions would round
            total = F.cross_entropy(
                logits.flatten(0, -2), labels.flatten().to(logits.device), reduction="sum"
            )
            return total / count
        return self.loss_function(logits, labels, logits.shape[-1], num_items_in_batch=count)

    def make_cache(self, num_beams: int) -> Cache:
        """An empty cache of the family's own, `num_beams` consecutive rows of one source."""
        return self.model.decoder.make_cache()

    def _prepare_cache_for_generation(
        self,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Replace the library's default cache by the family's; any other choice is left alone."""
        is_given = model_kwargs.get("cache") is not None or generation_config.use_cache is False
        if is_given or generation_config.cache_implementation not in (None, "dynamic"):
            super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)  # type: ignore[misc]
            return
        cache: Any = self.make_cache(generation_config.num_beams or 1)
        if generation_config.is_assistant:
            cache.activate_past_recording()
        model_kwargs["cache"] = cache

    def create_masks_for_generate(
        self, attention_mask: torch.Tensor | None, **kwargs: Any
    ) -> torch.Tensor | None:
        """Leave the padding mask [B, T] as it is under a static cache: the model makes what it
        needs of it.
        """
        return attention_mask

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Save with a config that calls the weights tied where they are one tensor."""
        # peft compares the output projection with the source embedding when it merges an adapter,
        # and may unset it
        if (
            getattr(self.lm_head, "weight", None)
            is self.model.get_decoder_input_embeddings().weight
        ):
            self.config.tie_word_embeddings = True
        super().save_pretrained(*args, **kwargs)  # type: ignore[misc]

    def compute_transition_scores(self, *args: Any, **kwargs: Any) -> Any:
        """See transformers, which would take `config.vocab_size`, here the source's, for the
        target's.
        """
        # A copy of this model with a config of its own: other threads may be using this model's.
        view = copy(self)
        view.config = copy(self.config)
        view.config.vocab_size = self.config.decoder_vocab_size
        return super(Seq2SeqHead, view).compute_transition_scores(*args, **kwargs)  # type: ignore[misc]


def count_labels(
    labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None
) -> torch.Tensor | int:
    """What a sum of losses is divided by: the number given, or that of the labels; at least 1."""
    count = labels.ne(IGNORED_LABEL).sum() if num_items_in_batch is None else num_items_in_batch
    return (
        count.to(labels.device).clamp(min=1) if isinstance(count, torch.Tensor) else max(count, 1)
    )


def shift_tokens_right(
    labels: torch.Tensor, pad_token_id: int, decoder_start_token_id: int
) -> torch.Tensor:
    """Decoder inputs [B, T] for labels [B, T]: the start token, then the labels but the last; -100
    becomes padding.
    """
    shifted = labels.new_full(labels.shape, decoder_start_token_id)
    shifted[:, 1:] = labels[:, :-1]
    return shifted.masked_fill(shifted == IGNORED_LABEL, pad_token_id)


def known_keywords(keywords: Mapping[str, Any], forward: Callable[..., Any]) -> dict[str, Any]:
    """The keywords that every forward pass takes; `TypeError` for any other of `forward` that is
    not None.

    A newer transformers may rename what it hands over: a forward pass without it would compute
    something else."""
    for name, value in keywords.items():
        if name not in _TAKEN_BY_ALL and value is not None:
            close = difflib.get_close_matches(
                name, inspect.signature(forward).parameters, n=1, cutoff=0.8
            )
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"forward() has no argument {name!r}.{hint}")
    return {name: value for name, value in keywords.items() if name in _TAKEN_BY_ALL}
