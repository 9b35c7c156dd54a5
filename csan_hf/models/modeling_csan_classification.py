# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""CSAN's encoder, alone or with a head that classifies sentences or their tokens.

There is no decoder and there are no decoder parameters. The encoder's weights have the names that
they have in `CsanForConditionalGeneration`, so that a translation checkpoint loads with only the
head new. Shapes: B batch, T positions, d model width, C labels."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import (
    BaseModelOutput,
    ModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple

from .configuration_csan import CsanConfig
from .modeling_csan import CsanBaseModel, CsanPreTrainedModel
from .seq2seq_model import count_labels, known_keywords


def masked_mean(hidden_states: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Mean [B, d] of states [B, T, d] where `attention_mask` [B, T] is 1 (None: everywhere); zeros
    if that is nowhere.

    Summed in float32 at least, returned in the dtype of the states.
    """
    if attention_mask is None:
        attention_mask = hidden_states.new_ones(hidden_states.shape[:2])
    real = attention_mask.to(hidden_states.device).bool()
    # Filled, not multiplied: what stands at padding may be anything, NaN too.
    precision = torch.promote_types(hidden_states.dtype, torch.float32)
    total = hidden_states.masked_fill(~real.unsqueeze(-1), 0.0).sum(dim=1, dtype=precision)
    return (total / real.sum(dim=1, keepdim=True).clamp(min=1)).to(hidden_states.dtype)


_HEADS = "modeling_csan_classification"
_AUTO_MAP = {
    **CsanPreTrainedModel.auto_map,
    "AutoModelForSequenceClassification": f"{_HEADS}.CsanForSequenceClassification",
    "AutoModelForTextEncoding": f"{_HEADS}.CsanEncoderModel",
    "AutoModelForTokenClassification": f"{_HEADS}.CsanForTokenClassification",
}


class CsanEncoderModel(CsanBaseModel):
    """The encoder half of `CsanModel`, its weights under the same names."""

    auto_map = {**_AUTO_MAP, "AutoModel": f"{_HEADS}.CsanEncoderModel"}  # noqa: RUF012
    translates = False
    # What a checkpoint with a decoder holds beyond the encoder
    _keys_to_ignore_on_load_unexpected = [  # noqa: RUF012
        r"^(model\.)?decoder\.",
        r"^lm_head\.",
        r"^final_logits_bias$",
    ]

    def __init__(self, config: CsanConfig) -> None:
        super().__init__(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """Encode; arguments and result are those of `CsanEncoder.forward`."""
        options = known_keywords(kwargs)
        return self.encoder(input_ids, attention_mask, inputs_embeds, return_dict=True, **options)


class _CsanClassifier(CsanPreTrainedModel):
    """Base of both heads: encoder, dropout and a linear layer `score`."""

    auto_map = _AUTO_MAP
    translates = False
    output_class: ClassVar[type[ModelOutput]]
    loss_name: ClassVar[str]

    def __init__(self, config: CsanConfig) -> None:
        super().__init__(config)
        self.loss_type = self.loss_name  # the library guesses it by the name of the class
        self.num_labels: int = config.num_labels  # type: ignore[assignment]
        self.model = CsanEncoderModel(config)
        self.dropout = nn.Dropout(
            config.dropout if config.classifier_dropout is None else config.classifier_dropout
        )
        self.score = nn.Linear(config.d_model, self.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> ModelOutput:
        """Logits [B, C] of sentences or [B, T, C] of tokens and, with `labels`, their loss.

        Args:
            input_ids: [B, T], or instead `inputs_embeds` [B, T, d].
            attention_mask: [B, T], 1 = a real token.
            labels: What the class says; a class of -100 is ignored. `ValueError` where they have
                another shape or type. The loss is their mean (0 where all are ignored), or their
                sum divided by the Trainer's `num_items_in_batch`.
        """
        num_items_in_batch = kwargs.pop("num_items_in_batch", None)
        options = known_keywords(kwargs)
        outputs = self.model(input_ids, attention_mask, inputs_embeds, return_dict=True, **options)
        logits = self.score(self.dropout(self._features(outputs.last_hidden_state, attention_mask)))
        return self.output_class(
            loss=None
            if labels is None
            else self._loss(logits, labels.to(logits.device), num_items_in_batch),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def _features(self, states: Tensor, attention_mask: Tensor | None) -> Tensor:
        """The states that are classified, of the encoder's [B, T, d]."""
        return states

    def _loss(self, logits: Tensor, labels: Tensor, num_items_in_batch: Any) -> Tensor:
        """The cross-entropy of classes, one for each row of logits."""
        _check_labels(labels, logits.shape[:-1], are_classes=True)
        count = count_labels(labels, num_items_in_batch)
        kwargs = {"labels": labels.long(), "config": self.config, "num_items_in_batch": count}
        return self.loss_function(
            logits=logits, pooled_logits=logits.float(), **kwargs
        )  # by either of its names


class CsanForSequenceClassification(_CsanClassifier):
    """CSAN's encoder, the mean of its states over the real tokens (all without a mask), dropout and
    a linear layer.

    Labels, by `config.problem_type`: `"single_label_classification"`: classes [B] (cross-entropy);
    `"multi_label_classification"`: 0 or 1 for every label, [B, C] (binary cross-entropy);
    `"regression"`: values [B, C], or [B] with one label (mean squared error). None is set as in
    transformers: one label means regression, several mean a single label with integer `labels` and
    multiple labels otherwise."""

    output_class = SequenceClassifierOutput
    loss_name = "ForSequenceClassification"

    def _features(self, states: Tensor, attention_mask: Tensor | None) -> Tensor:
        return masked_mean(states, attention_mask)

    def _loss(self, logits: Tensor, labels: Tensor, num_items_in_batch: Any) -> Tensor:
        config: Any = self.config
        if config.problem_type is None:
            # Inferred and kept in the config as the library does: a saved model knows how its
            # logits are to be read.
            kind = "single" if labels.dtype in (torch.int64, torch.int32) else "multi"
            config.problem_type = (
                "regression" if self.num_labels == 1 else f"{kind}_label_classification"
            )
        if config.problem_type == "single_label_classification":
            return super()._loss(logits, labels, num_items_in_batch)
        _check_labels(
            labels, logits.shape[:1] if logits.shape[1] == 1 else logits.shape, are_classes=False
        )
        labels = labels.float().view(logits.shape)
        loss = self.loss_function(labels=labels, pooled_logits=logits.float(), config=config)
        # The library's other two losses are means over this batch, whatever the Trainer says.
        if num_items_in_batch is None:
            return loss
        return loss * (labels.numel() / count_labels(labels, num_items_in_batch))


class CsanForTokenClassification(_CsanClassifier):
    """CSAN's encoder, dropout and a linear layer on every token's state; labels are classes [B, T]
    (cross-entropy).
    """

    output_class = TokenClassifierOutput
    loss_name = "ForTokenClassification"


def _check_labels(labels: Tensor, shape: torch.Size, are_classes: bool) -> None:
    """Refuse `labels` of another shape ([..., 1] is as good), or classes that are no integers."""
    is_wrong = are_classes and labels.dtype not in (torch.int64, torch.int32)
    if is_wrong or labels.shape not in (shape, torch.Size([*shape, 1])):
        what = "integers, one class each, of" if are_classes else "numbers of"
        raise ValueError(
            f"`labels` must be {what} shape {list(shape)}, got {labels.dtype} "
            f"{list(labels.shape)}; the config's `problem_type` says what they mean "
            "('multi_label_classification': 0 or 1 for every label)."
        )


CsanEncoderModel.register_for_auto_class("AutoModelForTextEncoding")
CsanForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")
CsanForTokenClassification.register_for_auto_class("AutoModelForTokenClassification")

__all__ = ["CsanEncoderModel", "CsanForSequenceClassification", "CsanForTokenClassification"]
