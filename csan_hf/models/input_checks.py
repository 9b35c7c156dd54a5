# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Checks of a model's inputs, weights and size, with errors that name the argument and what it must be.

The checks of inputs read shapes and types alone, so that nothing waits for a GPU. Tokens out of range are found where
torch finds them: on a CPU. (`csan` and `pervasive_attention` hold the same file, as a checkpoint on the Hub carries
the code of its folder alone.)
"""

import os
import pickle
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers.utils import logging

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
    # An additive mask (0 and -inf, or 0 and -10000) would mean the opposite. The values are read on a CPU alone, where
    # that makes nothing wait.
    if mask.dtype != torch.bool and mask.device.type == "cpu" and not torch.compiler.is_compiling():
        strange = mask[(mask != 0) & (mask != 1)]
        if strange.numel():
            raise ValueError(f"`{name}` must hold 1 (a real token) and 0 (padding), got {strange[0].item()}.")
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
    try:
        return loss_function(logits, labels.long(), logits.shape[-1], num_items_in_batch=num_items_in_batch)
    except IndexError as error:
        real = labels[labels.ne(IGNORED_LABEL)]
        raise ValueError(
            f"`labels` must be tokens of the vocabulary, 0 to {logits.shape[-1] - 1}, or {IGNORED_LABEL} (ignored), "
            f"got numbers from {real.min().item()} to {real.max().item()}."
        ) from error


def load_checked(load: Callable[..., Any], source: Any, *args: Any, **kwargs: Any) -> Any:
    """Return what `load`, the library's `from_pretrained`, returns for the checkpoint `source`, and check its weights.

    Raises:
        OSError: A file of weights is damaged, incomplete or unsafe.
        ValueError: A weight that the checkpoint should hold is missing: the library would put random numbers in its
            place. (With `output_loading_info=True` the report says so instead.) Or a weight is NaN or infinite:
            whatever the model computed would be, too.
    """
    wants_report = kwargs.pop("output_loading_info", False)
    try:
        model, report = load(source, *args, output_loading_info=True, **kwargs)
    except SafetensorError as error:
        raise OSError(
            f"{_damaged_file(source, kwargs.get('subfolder') or '')} is damaged or incomplete ({error}); copy or "
            f"download it again."
        ) from error
    except pickle.UnpicklingError as error:
        raise OSError(
            f"The checkpoint {str(source)!r} holds weights as a pickle that is damaged or would run code: it was "
            f"not loaded. Ask its author for weights in the safetensors format."
        ) from error
    if source is not None and kwargs.get("state_dict") is None and not wants_report:
        _check_complete(model, report["missing_keys"], source, kwargs)
    _check_weights(model, source)
    return (model, report) if wants_report else model


def _check_complete(model: Any, missing: Iterable[str], source: Any, kwargs: dict[str, Any]) -> None:
    """Raise `ValueError` if a weight is missing that a model of the checkpoint's own config and class has.

    A new head on a pretrained model, and weights of fields that were overridden here, are new by intention.
    """
    lost = set(missing)
    if not lost:
        return
    where = {key: kwargs[key] for key in _LOCATION if key in kwargs}
    stored, _ = model.config_class.get_config_dict(source, **where) if source is not None else ({}, {})
    if stored:
        with torch.device("meta"):
            lost &= set(type(model)(model.config_class.from_dict(stored)).state_dict())
    is_of_another_class = stored.get("architectures") not in (None, [type(model).__name__])
    if is_of_another_class and model.base_model is not model:
        lost = {name for name in lost if name.startswith(f"{model.base_model_prefix}.")}
    elif is_of_another_class:  # a classifier has no decoder: a part of which nothing is there is new by intention, too
        parts = {_part(name) for name in model.state_dict().keys() - set(missing)}
        lost = {name for name in lost if _part(name) in parts}
    if lost:
        raise ValueError(
            f"The checkpoint {str(source)!r} lacks {_some(sorted(lost))}: its file of weights is not the whole model, "
            f"or its config.json is another's. Copy or download it again."
        )


_LOCATION = ("cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token")


def _part(name: str) -> tuple[str, ...]:
    """The part of a model that a weight belongs to, as `("decoder", "layers")`."""
    return tuple(name.split(".")[:2])


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _damaged_file(source: Any, subfolder: str) -> str:
    for path in sorted((Path(str(source)) / subfolder).glob("*.safetensors")):
        try:
            with safe_open(path, "pt"):
                continue
        except SafetensorError:
            return str(path)
    return f"A file of weights of {str(source)!r}"


def _check_weights(model: nn.Module, source: Any) -> None:
    broken = [name for name, tensor in model.state_dict().items() if not _is_finite(tensor)]
    if broken:
        raise ValueError(
            f"The checkpoint {str(source)!r} holds NaN or infinity in {_some(broken)}: its training diverged, or the "
            f"file is damaged. Use an earlier checkpoint."
        )


def _is_finite(tensor: Any) -> bool:
    """Whether a weight is finite; True for one that cannot be checked, quantized or on the meta device."""
    plain = type(tensor) in (torch.Tensor, nn.Parameter) and tensor.is_floating_point()
    if not plain or tensor.device.type == "meta":
        return True
    if tensor.dtype.itemsize == 1:  # torch cannot tell for floats of 8 bits
        tensor = tensor.to(torch.float32)
    return bool(tensor.isfinite().all())


# What the modules of a layer take in Python, beside its weights
_BYTES_OF_A_LAYER = 50_000
_MANY_LAYERS = 1_000


def check_size(config: Any, parameters: int, layers: int) -> None:
    """Refuse a model that does not fit into this machine's memory, before it is built.

    Args:
        config: The config, named in the error.
        parameters: A lower bound of the model's parameters.
        layers: A lower bound of its layers.

    Raises:
        ValueError: The model would take more memory than this machine has.
    """
    needed = 4 * parameters + _BYTES_OF_A_LAYER * layers
    there = _memory()
    if there is not None and needed > there:
        raise ValueError(
            f"The {type(config).__name__} asks for a model of at least {parameters:,} parameters in {layers:,} "
            f"layers, {needed / 2**30:,.0f} GiB in float32; this machine has {there / 2**30:,.1f} GiB of memory: "
            f"choose smaller sizes."
        )
    if layers > _MANY_LAYERS:
        logger.warning(f"The {type(config).__name__} asks for {layers:,} layers: building them takes a while.")


def _memory() -> int | None:
    """Bytes of main memory, or of a container's share; None where the system does not tell."""
    found = [_container_memory(path) for path in _CONTAINER_LIMITS]
    with suppress(AttributeError, OSError, ValueError):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min((size for size in found if size), default=None)


# Of control groups, as a container sees its own: versions 2 and 1
_CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def _container_memory(path: str) -> int | None:
    """Bytes that a control group may use; None without a limit."""
    try:
        return int(Path(path).read_text(encoding="ascii"))
    except (OSError, ValueError):  # the latter of the word "max"
        return None
