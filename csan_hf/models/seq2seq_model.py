# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What encoder-decoder models with one shared or two separate vocabularies have in common: tying, resizing, saving."""

import os
import pickle
import stat
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import AutoTokenizer
from transformers.utils import logging

if TYPE_CHECKING:
    # Never run: transformers copies the files that relative imports name, and the pipeline belongs to a checkpoint.
    from .translation import TranslationPipeline  # noqa: F401

logger = logging.get_logger(__name__)

TARGET_TOKENIZER_SUBFOLDER = "target_tokenizer"


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
                f"{_damaged_file(source, kwargs.get('subfolder') or '')} is damaged, incomplete or unsafe ({error}); "
                f"copy or download it again, as safetensors."
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
    """Mixin of the model without output projection, which has `encoder`, `decoder` and perhaps `shared`."""

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
