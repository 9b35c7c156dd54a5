# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What the families share: loading, saving, tying and resizing; checks of inputs; the loss, dropout and sinusoids.

Shapes: B sentences, T positions, I target positions, V entries of the vocabulary, d width. Checks read shapes and
types alone, so that nothing waits for a GPU; tokens out of range are found where torch finds them, on a CPU.
"""

import difflib
import inspect
import math
import os
import pickle
import stat
from collections.abc import Callable, Mapping
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import AutoTokenizer
from transformers.cache_utils import Cache
from transformers.generation import GenerationConfig
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple, logging

if TYPE_CHECKING:
    # Never run: transformers copies the files that relative imports name, and the pipeline belongs to a checkpoint.
    from .translation import TranslationPipeline  # noqa: F401

logger = logging.get_logger(__name__)

TARGET_TOKENIZER_SUBFOLDER = "target_tokenizer"
IGNORED_LABEL = -100
_OF_A_FORWARD = {*TransformersKwargs.__annotations__, "cache_position", "return_dict"}
_DRAWS = 2**16
_FEWEST = 8192  # elements from which on the cheaper numbers pay for the operations around them

# --- models ------------------------------------------------------------------------------------------------------


class Seq2SeqPreTrained:
    """Mixin of a family's `PreTrainedModel`: loading, saving, tied weights and the size of vocabularies.

    Attributes:
        auto_map: What a checkpoint's config.json says of the family's classes: `FILE.CLASS` by Auto class.
        translates: Whether the model has a decoder, so that a checkpoint offers the translation pipeline.
    """

    config: Any
    device: torch.device
    auto_map: ClassVar[dict[str, str]] = {}
    translates: ClassVar[bool] = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """The code of a class is saved with a model if that class is itself registered (`register_for_auto_class`)."""
        super().__init_subclass__(**kwargs)
        cls._auto_class = None  # type: ignore[attr-defined]

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load a checkpoint as transformers does.

        Raises:
            OSError: A file of weights is damaged, incomplete or unsafe.
            ValueError: A weight that a model of this class and config holds is missing: the library would put random
                numbers in its place. (With `output_loading_info=True` the report says so instead.)
        """
        wants_report = kwargs.pop("output_loading_info", False)
        source, load = pretrained_model_name_or_path, super().from_pretrained  # type: ignore[misc]
        try:
            model, report = load(source, *args, output_loading_info=True, **kwargs)
        except (SafetensorError, pickle.UnpicklingError) as error:
            raise OSError(
                f"{_damaged_file(source, kwargs.get('subfolder') or '')} is damaged, incomplete or unsafe "
                f"({str(error).splitlines()[0]}); copy or download it again, as safetensors."
            ) from error
        # Other fields or another class (a classifier of a translator) have new weights by intention.
        is_as_stored = not {"config", "state_dict", *cls.config_class.__dataclass_fields__} & kwargs.keys()  # type: ignore[attr-defined]
        missing = sorted(report["missing_keys"])
        if missing and is_as_stored and not wants_report and model.config.architectures == [cls.__name__]:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise ValueError(
                f"The checkpoint {str(source)!r} lacks {', '.join(missing[:3])}{more}: its file of weights is not the "
                f"whole model, or its config.json is another's. Copy or download it again."
            )
        return (model, report) if wants_report else model

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save as transformers does, with all that loads where csan_hf is not installed.

        transformers copies the code of classes that are registered for an Auto class. Beside that `config.json` names
        all classes and the translation pipeline, and the target's tokenizer is taken over from the checkpoint that the
        model was loaded from. Weights get the permissions that the umask gives other files.
        """
        directory = Path(save_directory)
        if self._auto_class is not None:  # type: ignore[attr-defined]
            self.config.auto_map = dict(self.auto_map)
            self.config.custom_pipelines = {}
            if self.translates:
                pipeline = {"impl": "translation.TranslationPipeline", "pt": ["AutoModelForSeq2SeqLM"], "type": "text"}
                self.config.custom_pipelines = {"translation": pipeline}
        super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]
        if not (directory / "config.json").is_file():
            return  # not the main process
        for weights in directory.glob("model*.safetensors"):  # which safetensors lets only their owner read
            weights.chmod(stat.S_IMODE((directory / "config.json").stat().st_mode))
        if self.translates and not getattr(self.config, "share_encoder_decoder_embeddings", True):
            _keep_target_tokenizer(self.config, directory / TARGET_TOKENIZER_SUBFOLDER)

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """The tied weights under the current config; shared embeddings are tied whatever `tie_word_embeddings` is."""
        if all_submodels:
            expanded: dict[str, str] = super().get_expanded_tied_weights_keys(all_submodels=True)  # type: ignore[misc]
            return expanded
        return dict(self._tied_weights_keys)

    @property
    def _tied_weights_keys(self) -> dict[str, str]:
        return {}

    @property
    def dummy_inputs(self) -> dict[str, torch.Tensor]:
        """A small valid input: two source sentences, one of them padded."""
        pad = self.config.pad_token_id
        input_ids = torch.tensor([[0, 6, 10, 4, 2], [0, 8, 12, 2, pad]], device=self.device)
        return {"input_ids": input_ids, "attention_mask": input_ids.ne(pad), "decoder_input_ids": input_ids}

    def resize_token_embeddings(
        self,
        new_num_tokens: int | None = None,
        pad_to_multiple_of: int | None = None,
        mean_resizing: bool = True,
    ) -> nn.Embedding:
        """Change the size of the (shared, or else the source) vocabulary; see transformers."""
        parent: Any = super()
        embeddings: nn.Embedding = parent.resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        if self.config.share_encoder_decoder_embeddings:
            self.config.decoder_vocab_size = self.config.vocab_size  # one vocabulary has one size
        return embeddings


def _damaged_file(source: Any, subfolder: str) -> str:
    for path in sorted(Path(str(source), subfolder).glob("*.safetensors")):
        try:
            with safe_open(path, "pt"):
                continue
        except SafetensorError:
            return str(path)
    return f"A file of weights of {str(source)!r}"


def _keep_target_tokenizer(config: Any, folder: Path) -> None:
    """Save the second tokenizer of the checkpoint that a config came from to `folder`, unless that is there.

    A checkpoint without a commit was a folder: once it is gone, its name may be that of a stranger's repository.
    """
    origin, commit = getattr(config, "_name_or_path", ""), getattr(config, "_commit_hash", None)
    if folder.is_dir():
        return
    if commit or os.path.isdir(origin):
        try:
            where = {"subfolder": folder.name, "revision": commit or "main"}
            # False, not None: a save must not stop to ask whether the tokenizer's code may run
            AutoTokenizer.from_pretrained(origin, trust_remote_code=False, **where).save_pretrained(folder)
            return
        except (OSError, ValueError):
            pass
    logger.warning(
        f"{folder.parent} lacks {folder.name}/: the target has a vocabulary of its own, and a model does not know its "
        f"tokenizers. Unless you save it yourself later, `target_tokenizer.save_pretrained({str(folder)!r})` adds it."
    )


class Seq2SeqEmbeddings:
    """Mixin of the model without output projection, which has `encoder`, `decoder` and perhaps `shared`.

    Encoder and decoder take what `forward` passes them and return `BaseModelOutput` and
    `BaseModelOutputWithPastAndCrossAttentions`, or what has their fields.
    """

    config: Any
    encoder: Any
    decoder: Any

    @property
    def _tied_weights_keys(self) -> dict[str, str]:
        if not self.config.share_encoder_decoder_embeddings:
            return {}
        return {
            "encoder.embed_tokens.weight": "shared.weight",
            "decoder.embed_tokens.weight": "shared.weight",
        }

    def get_input_embeddings(self) -> nn.Embedding:
        """The source embedding (the shared one, where shared)."""
        embeddings: nn.Embedding = self.encoder.embed_tokens
        return embeddings

    def set_input_embeddings(self, value: Any) -> None:
        """Replace the source embedding (the shared one in all its places, where shared); used as it is, not scaled."""
        if self.config.share_encoder_decoder_embeddings:
            self.shared = value
            self.decoder.embed_tokens = value
        self.encoder.embed_tokens = value

    def get_decoder_input_embeddings(self) -> nn.Embedding:
        """The target embedding."""
        embeddings: nn.Embedding = self.decoder.embed_tokens
        return embeddings

    def set_decoder_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the target embedding of a model with separate vocabularies; used as it is, not scaled."""
        require_separate_vocabularies(self.config, "set_decoder_input_embeddings", "set_input_embeddings")
        self.decoder.embed_tokens = value

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqModelOutput:
        """Encode (unless `encoder_outputs` is given) and decode.

        Args:
            input_ids: Source tokens, [B, J].
            attention_mask: [B, J], 1 = a real source token.
            decoder_input_ids: Target tokens, [B, I]; default: the source shifted right.
            decoder_attention_mask: [B, I], 1 = a real target token.
            encoder_outputs: What the encoder returned for this source.
            past_key_values: Cache of earlier target positions.
            inputs_embeds: [B, J, d] instead of `input_ids`: what `get_input_embeddings()` gives.
            decoder_inputs_embeds: [B, I, d] instead of `decoder_input_ids`.
            use_cache: Whether to return a cache.
            **kwargs: `output_attentions`, `output_hidden_states` and what else transformers passes on.
        """
        check_forward_keywords(kwargs, type(self).forward)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs
            )
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs[:3])
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = self.decoder_inputs_from_source(input_ids)
        decoder_outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoder_outputs[0],
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        return self._join(encoder_outputs, decoder_outputs)

    def _join(self, encoder_outputs: Any, decoder_outputs: Any) -> Seq2SeqModelOutput:
        """One output of the encoder's and the decoder's."""
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            past_key_values=decoder_outputs.past_key_values,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )

    def decoder_inputs_from_source(self, input_ids: torch.Tensor | None) -> torch.Tensor:
        """Decoder inputs [B, J] where none are given: the source, shifted right.

        Raises:
            ValueError: The vocabularies are separate, or there are no source tokens.
        """
        if input_ids is None or not self.config.share_encoder_decoder_embeddings:
            raise ValueError(
                "`decoder_input_ids` (or `decoder_inputs_embeds`) must be given: they can be derived only from "
                "`input_ids` of a shared vocabulary."
            )
        return shift_tokens_right(input_ids, self.config.pad_token_id, self.config.decoder_start_token_id)


class Seq2SeqHead:
    """Mixin of the model with output projection, which has `model` and `lm_head`."""

    config: Any
    model: Any
    lm_head: Any

    def post_init(self) -> None:
        """Choose the loss: by the name of the class it would be the causal one, which shifts the labels once more."""
        super().post_init()  # type: ignore[misc]
        self.loss_type = "ForMaskedLM"

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        past_key_values: Cache | None = None,
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

        Returns:
            `logits` [B, I, V] and, with labels, `loss`: the mean over labels, or their sum divided by
            `num_items_in_batch` where the Trainer passes it.
        """
        check_forward_keywords(kwargs, type(self).forward)
        if labels is not None:
            check_labels(labels, decoder_inputs_embeds if decoder_input_ids is None else decoder_input_ids)
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        decoder_attention_mask = self._target_mask(decoder_attention_mask, decoder_input_ids, labels)
        num_items_in_batch = kwargs.pop("num_items_in_batch", None)
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **{**kwargs, "return_dict": True},
        )
        logits = self._project(outputs.last_hidden_state)
        loss = None
        if labels is not None:
            loss = label_loss(self.loss_function, logits, labels, num_items_in_batch)  # type: ignore[attr-defined]
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=self._explain(
                outputs,
                logits,
                attention_mask=attention_mask,
                decoder_input_ids=decoder_input_ids,
                decoder_attention_mask=decoder_attention_mask,
                labels=labels,
            ),
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
        )

    def _target_mask(
        self, mask: torch.Tensor | None, decoder_input_ids: torch.Tensor | None, labels: torch.Tensor | None
    ) -> torch.Tensor | None:
        """The decoder's mask [B, I] where a family derives it; else the given one."""
        return mask

    def _explain(self, outputs: Any, logits: torch.Tensor, **inputs: torch.Tensor | None) -> Any:
        """The `cross_attentions` of `outputs`, or what a family makes of them, the logits and the inputs."""
        return outputs.cross_attentions

    def _project(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Logits [B, I, V] of the decoder's states [B, I, d]."""
        logits: torch.Tensor = self.lm_head(hidden_states)
        return logits

    def make_cache(self, num_beams: int) -> Cache:
        """The family's own cache of the decoder, for `num_beams` hypotheses of each sentence."""
        raise NotImplementedError

    def create_masks_for_generate(
        self, attention_mask: torch.Tensor | None = None, **kwargs: Any
    ) -> torch.Tensor | None:
        """Leave the padding mask [B, T] as it is under a static cache: the decoder makes what it needs of it."""
        return attention_mask

    def _prepare_cache_for_generation(
        self, generation_config: GenerationConfig, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        """Replace the library's default cache by the family's; any other choice is left alone."""
        user_defined = model_kwargs.get("past_key_values") is not None
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)  # type: ignore[misc]
        implementation = generation_config.cache_implementation
        if user_defined or implementation not in (None, "dynamic") or model_kwargs.get("past_key_values") is None:
            return
        cache = self.make_cache(generation_config.num_beams or 1)
        if generation_config.is_assistant:
            cache.activate_past_recording()
        model_kwargs["past_key_values"] = cache

    @property
    def _tied_weights_keys(self) -> dict[str, str]:
        shared = self.config.share_encoder_decoder_embeddings
        target = "model.shared.weight" if shared else "model.decoder.embed_tokens.weight"
        tied = {f"model.{name}": f"model.{source}" for name, source in self.model._tied_weights_keys.items()}
        if self.config.tie_word_embeddings:
            tied["lm_head.weight"] = target
        return tied

    def get_output_embeddings(self) -> nn.Module:
        """The output projection."""
        head: nn.Module = self.lm_head
        return head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the output projection."""
        self.lm_head = new_embeddings

    def _resize_token_embeddings(
        self, new_num_tokens: int, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        parent: Any = super()
        arguments = (new_num_tokens, pad_to_multiple_of, mean_resizing)
        if self.config.share_encoder_decoder_embeddings:
            embeddings: nn.Embedding = parent._resize_token_embeddings(*arguments)
            return embeddings
        # The library would also resize the output projection, which belongs to the target vocabulary.
        embeddings = parent._get_resized_embeddings(self.model.get_input_embeddings(), *arguments)
        parent.set_input_embeddings(embeddings)
        return embeddings

    def resize_decoder_token_embeddings(self, new_num_tokens: int) -> nn.Embedding:
        """Change the size of a separate target vocabulary.

        Raises:
            ValueError: The vocabularies are shared.
        """
        require_separate_vocabularies(self.config, "resize_decoder_token_embeddings", "resize_token_embeddings")
        parent: Any = super()
        embeddings = parent._get_resized_embeddings(self.model.get_decoder_input_embeddings(), new_num_tokens)
        self.model.set_decoder_input_embeddings(embeddings)
        self.set_output_embeddings(parent._get_resized_lm_head(self.lm_head, new_num_tokens))
        self.config.decoder_vocab_size = new_num_tokens
        parent.tie_weights()
        resized: nn.Embedding = self.model.get_decoder_input_embeddings()
        return resized

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Decoder inputs [B, I] for labels [B, I]."""
        return shift_tokens_right(labels, self.config.pad_token_id, self.config.decoder_start_token_id)

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Save as transformers does, with a config that calls the weights tied where they are one tensor.

        (When peft merges an adapter, it compares the output projection with the source embedding; with separate
        vocabularies it therefore sets `tie_word_embeddings` to False.)
        """
        if getattr(self.lm_head, "weight", None) is self.model.get_decoder_input_embeddings().weight:
            self.config.tie_word_embeddings = True
        super().save_pretrained(*args, **kwargs)  # type: ignore[misc]

    def compute_transition_scores(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """See transformers, which would take `config.vocab_size`, here the source's, for the target's."""
        # A copy of this model with a config of its own: other threads may be using this model's.
        view = copy(self)
        view.config = copy(self.config)
        view.config.vocab_size = self.config.decoder_vocab_size
        parent: Any = super(Seq2SeqHead, view)
        scores: torch.Tensor = parent.compute_transition_scores(*args, **kwargs)
        return scores


# --- inputs and loss ---------------------------------------------------------------------------------------------


def shift_tokens_right(labels: torch.Tensor, pad_token_id: int, decoder_start_token_id: int) -> torch.Tensor:
    """Decoder inputs [B, T] for labels [B, T]: the start token, then the labels but the last; -100 becomes padding."""
    shifted = labels.new_full(labels.shape, decoder_start_token_id)
    shifted[:, 1:] = labels[:, :-1]
    return shifted.masked_fill(shifted == -100, pad_token_id)


def require_separate_vocabularies(config: Any, method: str, instead: str) -> None:
    """Raise `ValueError` if source and target share one vocabulary, for which there is the method `instead`."""
    if config.share_encoder_decoder_embeddings:
        raise ValueError(
            f"`{method}` needs separate vocabularies, but share_encoder_decoder_embeddings=True; call `{instead}`."
        )


def embed(
    embed_tokens: Any, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None, names: tuple[str, str]
) -> torch.Tensor:
    """Embeddings [B, T, d] of tokens [B, T], or ready-made ones.

    Args:
        embed_tokens: The token embedding.
        input_ids: [B, T].
        inputs_embeds: [B, T, d] instead.
        names: What the caller calls these two.

    Raises:
        ValueError: Not exactly one is given, or it has another shape or type, or holds numbers that are not tokens.
    """
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError(f"Exactly one of `{names[0]}` and `{names[1]}` must be given.")
    size, width = embed_tokens.weight.shape
    if inputs_embeds is not None:
        if inputs_embeds.dim() != 3 or inputs_embeds.shape[-1] != width:
            raise ValueError(
                f"`{names[1]}` must have the shape [batch, length, {width}], got {list(inputs_embeds.shape)}."
            )
        _check_not_empty(inputs_embeds, names[1])
        return inputs_embeds
    assert input_ids is not None  # for the type checker
    _check_tokens(input_ids, names[0])
    _check_not_empty(input_ids, names[0])
    try:
        embeddings: torch.Tensor = embed_tokens(input_ids)
    except IndexError as error:
        origin = " (they are `labels`, shifted, where only labels are given)" if names[0].startswith("decoder") else ""
        raise ValueError(
            f"`{names[0]}` must be tokens of the vocabulary, 0 to {size - 1}, got numbers from {input_ids.min()} to "
            f"{input_ids.max()}{origin}. Check that tokenizer and model belong together, or call "
            f"`resize_token_embeddings` for added tokens."
        ) from error
    return embeddings


def _check_not_empty(tokens: torch.Tensor, name: str) -> None:
    if 0 in tokens.shape[:2]:
        sizes = list(tokens.shape[:2])
        raise ValueError(f"`{name}` must hold at least one sentence and one token, got {sizes} ([batch, length]).")


def _check_tokens(tokens: torch.Tensor, name: str) -> None:
    if not isinstance(tokens, torch.Tensor):
        raise ValueError(f"`{name}` must be a tensor [batch, length], got {type(tokens).__name__}.")
    if tokens.dim() != 2:
        raise ValueError(f"`{name}` must have the shape [batch, length], got {list(tokens.shape)}.")
    if tokens.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"`{name}` must hold token numbers of type int64 or int32, got {tokens.dtype}.")


def padding_mask(mask: torch.Tensor, batch: int, length: int | None, name: str) -> torch.Tensor:
    """A mask of ones and zeros of any type as booleans [B, T], True = a real token.

    Args:
        mask: [B, T].
        batch: B.
        length: T; None = any.
        name: What the caller calls it.

    Raises:
        ValueError: It has another shape, or is no mask of ones and zeros.
    """
    if mask.dim() != 2 or mask.shape[0] != batch or (length is not None and mask.shape[1] != length):
        expected = [batch, "length" if length is None else length]
        raise ValueError(
            f"`{name}` must have the shape [batch, length] = [{expected[0]}, {expected[1]}], got {list(mask.shape)}."
        )
    if mask.is_complex():
        raise ValueError(f"`{name}` must hold 1 (a real token) and 0 (padding), got {mask.dtype}.")
    # The values are read on a CPU alone, where that makes nothing wait.
    if mask.dtype != torch.bool and mask.device.type == "cpu" and not torch.compiler.is_compiling():
        # An additive mask (0 and -inf, or 0 and -10000) would mean the opposite.
        strange = mask[(mask != 0) & (mask != 1)]
        if strange.numel():
            raise ValueError(f"`{name}` must hold 1 (a real token) and 0 (padding), got {strange[0].item()}.")
        if ((mask[:, 1:] > mask[:, :-1]).sum(dim=1) + mask[:, :1].sum(dim=1) > 1).any():
            logger.warning_once(
                f"`{name}` has padding between real tokens: positions and windows count on tokens that are neighbours."
            )
    return mask.bool()


def check_labels(labels: torch.Tensor, decoder_inputs: torch.Tensor | None) -> None:
    """Raise `ValueError` unless `labels` are tokens [B, I], as many as the decoder's inputs [B, I, ...]."""
    _check_tokens(labels, "labels")
    if decoder_inputs is not None and labels.shape != decoder_inputs.shape[:2]:
        raise ValueError(
            f"`labels` must have the shape [batch, length] = {list(decoder_inputs.shape[:2])} of the decoder's "
            f"inputs, got {list(labels.shape)}."
        )


def label_loss(
    loss_function: Callable[..., torch.Tensor],
    logits: torch.Tensor,
    labels: torch.Tensor,
    num_items_in_batch: torch.Tensor | int | None,
) -> torch.Tensor:
    """The sum of the losses of all labels, divided by their number; 0 where no label counts.

    Args:
        loss_function: A loss function of the library.
        logits: [B, I, V].
        labels: [B, I], -100 = ignored.
        num_items_in_batch: The number to divide by; None = that of the labels here.

    Raises:
        ValueError: A label is neither a token of the vocabulary nor -100.
    """
    if num_items_in_batch is None:
        num_items_in_batch = labels.ne(IGNORED_LABEL).sum()
    if isinstance(num_items_in_batch, torch.Tensor):
        num_items_in_batch = num_items_in_batch.clamp(min=1)
    else:
        num_items_in_batch = max(num_items_in_batch, 1)
    labels = labels.long().contiguous()
    try:
        if logits.dtype == torch.float64:  # which the library's functions would round
            total = F.cross_entropy(logits.flatten(0, -2), labels.flatten().to(logits.device), reduction="sum")
            return total / num_items_in_batch
        return loss_function(logits, labels, logits.shape[-1], num_items_in_batch=num_items_in_batch)
    except IndexError as error:
        real = labels[labels.ne(IGNORED_LABEL)]
        raise ValueError(
            f"`labels` must be tokens of the vocabulary, 0 to {logits.shape[-1] - 1}, or {IGNORED_LABEL} (ignored), "
            f"got numbers from {real.min().item()} to {real.max().item()}."
        ) from error


def check_forward_keywords(keywords: Mapping[str, Any], forward: Callable[..., Any]) -> None:
    """Refuse or warn about keywords of a forward pass that nothing reads.

    Keywords that transformers itself passes on are accepted; any other gives one warning.

    Args:
        keywords: The keywords that the forward pass has no argument for.
        forward: The forward pass.

    Raises:
        TypeError: A keyword is a misspelt argument.
    """
    if torch.compiler.is_compiling() or _OF_A_FORWARD.issuperset(keywords):
        return
    for name in keywords.keys() - _OF_A_FORWARD:
        close = difflib.get_close_matches(name, inspect.signature(forward).parameters, n=1, cutoff=0.8)
        if close:
            raise TypeError(f"forward() has no argument {name!r}. Did you mean {close[0]!r}?")
        logger.warning_once(f"forward() has no argument {name!r}: it has no effect.")


# --- layers ------------------------------------------------------------------------------------------------------


def drop(states: torch.Tensor, probability: float, training: bool = True) -> torch.Tensor:
    """`torch.nn.functional.dropout` with fewer random numbers on a CPU.

    Elsewhere, in compiled programs and for few elements it is torch's. On a CPU the probability is rounded to
    1 / 65536, and what is kept is scaled to match.

    Args:
        states: Floating-point tensor of any shape.
        probability: Probability of an element to become zero, 0 to 1.
        training: False returns `states` as they are.
    """
    if not training or probability == 0.0:
        return states
    if not _draws_itself(states, probability):
        return F.dropout(states, probability, training=True)
    return scale_kept(states, draw_kept(states, probability), probability)


def _draws_itself(states: torch.Tensor, probability: float) -> bool:
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._are_functorch_transforms_active():
        return False  # torch's own is one operation that a compiler, a tracer and torch.func's vmap know
    plain = type(states) is torch.Tensor and states.device.type == "cpu" and 0 < probability < 1
    return plain and states.numel() >= _FEWEST and 0 < round(probability * _DRAWS) < _DRAWS


def draw_kept(states: torch.Tensor, probability: float) -> torch.Tensor:
    """Which elements dropout keeps: 1, or 0 for those that it drops, in int16.

    A 64-bit draw serves four elements: random numbers are most of what dropout costs. The probability is rounded to
    1 / 65536.
    """
    count, dropped = states.numel(), round(probability * _DRAWS)
    if dropped == _DRAWS:
        return torch.zeros_like(states, dtype=torch.int16)
    draws = torch.empty(-(-count // 4), dtype=torch.int64, device=states.device).random_(-(2**63), None)
    # In place and in integers: a result of booleans costs a CPU more than the draws
    return draws.view(torch.int16)[:count].ge_(dropped - _DRAWS // 2).view(states.shape)


def scale_kept(states: torch.Tensor, kept: torch.Tensor, probability: float) -> torch.Tensor:
    """The kept elements, scaled up so that the mean stays, and zeros for the others."""
    scale = _DRAWS / max(_DRAWS - round(probability * _DRAWS), 1)
    return states * kept.to(states.dtype) * scale


class SinusoidalPositionalEmbedding(nn.Module):
    """Sinusoids of the positions, sines in the first half and cosines in the second.

    `"marian"`: Vaswani et al. (2017), section 3.5, positions counted from 0, computed in double precision.
    `"m2m_100"`: those of tensor2tensor and fairseq, with frequencies 10000^(-i / (d/2 - 1)), the first position being
    `pad_token_id` + 1; computed in single precision, as transformers' M2M100 does.

    The table is kept for `num_positions`, at most `LONGEST_TABLE`: a config asks for any number of
    positions, and most are never used. What lies beyond is computed when it is asked for.
    """

    LONGEST_TABLE = 16_384
    weight: torch.Tensor

    def __init__(
        self, num_positions: int, embedding_dim: int, kind: str = "marian", pad_token_id: int | None = None
    ) -> None:
        super().__init__()
        self.num_positions, self.embedding_dim = min(num_positions, self.LONGEST_TABLE), embedding_dim
        self.kind = kind
        self.first_position = 0 if pad_token_id is None or kind == "marian" else pad_token_id + 1
        # Made where the model is being made, which may be the meta device, and filled there unless it is
        weight = torch.empty(self.num_positions, self.embedding_dim).copy_(self.create_weight(self.num_positions))
        self.register_buffer("weight", weight, persistent=False)

    def create_weight(self, end: int) -> torch.Tensor:
        """The sinusoids of positions 0 to `end` - 1, [end, d] float32, on the CPU."""
        return self._sinusoids(torch.arange(end, device="cpu"))

    def forward(
        self, length: int, offset: int | torch.Tensor = 0, first_real: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Embeddings of consecutive positions.

        Args:
            length: Number T of positions.
            offset: Place of the first of them (a tensor where a static cache counts them).
            first_real: [B], place of each sentence's first real token, its position 0; None = 0. Places before it
                are padding and get position 0, too.

        Returns:
            [T, d], or [B, T, d] with `first_real`.
        """
        end = None if isinstance(offset, torch.Tensor) else offset + length
        if end is not None and end <= self.num_positions and first_real is None:
            return self.weight[offset:end]
        positions = torch.arange(length, device=self.weight.device) + offset
        if first_real is not None:
            positions = (positions - first_real.to(positions.device)[:, None]).clamp(min=0)
        if end is not None and end <= self.num_positions:
            return F.embedding(positions, self.weight)
        return self._sinusoids(positions).to(self.weight)

    def _sinusoids(self, positions: torch.Tensor) -> torch.Tensor:
        """[..., d] float32 for positions [...], on their device."""
        single = self.kind == "m2m_100" or positions.device.type == "mps"  # which has no double precision
        exact = torch.float32 if single else torch.float64
        if self.kind == "m2m_100":
            half = self.embedding_dim // 2
            steps = torch.arange(half, device=positions.device, dtype=exact)
            frequencies = torch.exp(steps * -(math.log(10000) / (half - 1)))
            angles = (positions + self.first_position).to(exact)[..., None] * frequencies
        else:
            steps = torch.arange(0, self.embedding_dim, 2, device=positions.device, dtype=exact)
            angles = positions.to(exact)[..., None] / torch.pow(10000.0, steps / self.embedding_dim)
        return torch.cat([angles.sin(), angles.cos()[..., : self.embedding_dim // 2]], dim=-1).float()
