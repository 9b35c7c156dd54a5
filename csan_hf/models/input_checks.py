# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Checks of a model's inputs, with errors that name the argument and what it must be, and the loss of labels.

Shapes and types alone are read, so that nothing waits for a GPU. Tokens out of range are found where torch finds
them: on a CPU.
"""

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.utils import TransformersKwargs, logging

logger = logging.get_logger(__name__)

IGNORED_LABEL = -100


def embed(
    embed_tokens: nn.Module,
    input_ids: torch.Tensor | None,
    inputs_embeds: torch.Tensor | None,
    names: tuple[str, str],
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
    if inputs_embeds is not None:
        width = _weight(embed_tokens).shape[-1]
        if inputs_embeds.dim() != 3 or inputs_embeds.shape[-1] != width:
            raise ValueError(
                f"`{names[1]}` must have the shape [batch, length, {width}], got {list(inputs_embeds.shape)}."
            )
        return inputs_embeds
    assert input_ids is not None  # for the type checker
    _check_tokens(input_ids, names[0])
    try:
        embeddings: torch.Tensor = embed_tokens(input_ids)
    except IndexError as error:
        raise ValueError(_out_of_range(input_ids, names[0], _weight(embed_tokens).shape[0])) from error
    return embeddings


def _weight(module: nn.Module) -> torch.Tensor:
    assert isinstance(module.weight, torch.Tensor)  # for the type checker
    return module.weight


def _check_tokens(tokens: torch.Tensor, name: str) -> None:
    if not isinstance(tokens, torch.Tensor):
        raise ValueError(f"`{name}` must be a tensor [batch, length], got {type(tokens).__name__}.")
    if tokens.dim() != 2:
        raise ValueError(f"`{name}` must have the shape [batch, length], got {list(tokens.shape)}.")
    if tokens.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"`{name}` must hold token numbers of type int64 or int32, got {tokens.dtype}.")


def _out_of_range(tokens: torch.Tensor, name: str, size: int) -> str:
    origin = " (they are `labels`, shifted, where only labels are given)" if name.startswith("decoder") else ""
    return (
        f"`{name}` must be tokens of the vocabulary, 0 to {size - 1}, got numbers from {tokens.min().item()} to "
        f"{tokens.max().item()}{origin}. Check that tokenizer and model belong together, or call "
        f"`resize_token_embeddings` for added tokens."
    )


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
    if mask.device.type == "cpu" and not torch.compiler.is_compiling():
        # An additive mask (0 and -inf, or 0 and -10000) would mean the opposite.
        strange = mask[(mask != 0) & (mask != 1)]
        if strange.numel():
            raise ValueError(f"`{name}` must hold 1 (a real token) and 0 (padding), got {strange[0].item()}.")
        if ((mask[:, 1:] > mask[:, :-1]).sum(dim=1) + mask[:, 0] > 1).any():
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


_OF_A_FORWARD = {*TransformersKwargs.__annotations__, "cache_position", "return_dict"}


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
