# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The encoder's attention over many sentences: how far it looks, how spread it is, what it has
learned.

Everything is read from the model's own forward pass, so all terms of a layer's energies are
included."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from csan_hf.alignment import check_positions
from csan_hf.data import TokenizerPair
from csan_hf.models.evaluation_view import evaluation_view
from csan_hf_runtime.texts import batches_by_length

BATCH_CELLS = 2**19
"""Characters squared of the sentences of a batch, unless one alone has more: every layer and head
has a matrix of each.
"""


@dataclass(frozen=True)
class AttentionStatistics:
    """The encoder's self-attention, averaged over all real queries of all sentences, `queries` in
    number.

    `mass`, float64 [layers, H, R + 2], is the share of the attention that lies 0, 1, … R tokens
    from the query, and further away; each row sums to 1. `entropy`, float64 [layers, H], is in
    nats: exp of it is about how many tokens share the attention."""

    mass: np.ndarray
    entropy: np.ndarray
    queries: int


@dataclass(frozen=True)
class LearnedWindows:
    """Where the locality methods of a model make its queries look, in the encoder layers that have
    such a method.

    For each of these `layers`, float32 [H, queries]: `widths` of the window in tokens; `offsets`,
    the window's middle minus the query's position, in tokens, negative to the left."""

    layers: list[int]
    widths: list[np.ndarray]
    offsets: list[np.ndarray]


@torch.inference_mode()
def attention_statistics(
    model: PreTrainedModel,
    tokenizers: TokenizerPair,
    sentences: Sequence[str],
    *,
    distance: int = 10,
    progress: bool = False,
) -> AttentionStatistics:
    """Measures how far the encoder's heads look, and how spread their attention is.

    In a layer with an area of heads, the weights are summed over the heads of the area.

    Args:
        model: A Transformer such as CSAN or Marian.
        tokenizers: Its tokenizers.
        sentences: Source sentences, one or more; blank ones are left out.
        distance: R, the largest distance that is counted by itself.
        progress: Shows a bar on standard error.

    Raises:
        ValueError: If one has more tokens than the model has positions, or the model's encoder has
            no attention.
    """
    mass: list[np.ndarray] = []
    entropy: list[np.ndarray] = []
    queries = 0
    model = evaluation_view(model)
    # The faster implementations never have the attention weights
    model.set_attn_implementation("eager")
    for batch in _batches(model, tokenizers, sentences, progress):
        layers = model.get_encoder()(**batch, output_attentions=True).attentions
        if not layers:
            raise ValueError(f"{type(model).__name__} gives no encoder_attentions to measure.")
        real = batch["attention_mask"].bool()
        seen = real[:, None, :, None] & real[:, None, None, :]
        masses, entropies = zip(
            *(_layer_statistics(weights, seen, distance) for weights in layers), strict=True
        )
        mass.append(np.stack(masses))
        entropy.append(np.stack(entropies))
        queries += int(real.sum())
    return AttentionStatistics(
        np.sum(mass, axis=0) / queries, np.sum(entropy, axis=0) / queries, queries
    )


def _layer_statistics(
    weights: Tensor, seen: Tensor, distance: int
) -> tuple[np.ndarray, np.ndarray]:
    """Sums a layer's weights [B, H, I, J] by |j - i|, [H, R + 2], and their entropies, [H]."""
    weights = weights.double() * seen
    positions = torch.arange(weights.shape[-1], device=weights.device)
    away = (positions[None, :] - positions[:, None]).abs().clamp(max=distance + 1)
    cells = weights.sum(dim=0).flatten(1)  # [H, I J]
    sums = cells.new_zeros(len(cells), distance + 2).index_add_(1, away.flatten(), cells)
    entropies = -torch.xlogy(weights, weights).sum(dim=(0, 2, 3))
    return sums.cpu().numpy(), entropies.cpu().numpy()


@torch.inference_mode()
def learned_windows(
    model: PreTrainedModel,
    tokenizers: TokenizerPair,
    sentences: Sequence[str],
    *,
    progress: bool = False,
) -> LearnedWindows | None:
    """Reads windows and their middles off the encoder's terms (Yang et al., EMNLP 2018, Figures 2
    and 3).

    The model is a Transformer, such as a CSAN with a locality method that says where a query looks:
    its term has a `center` and a `width` in tokens. The other arguments are those of
    `attention_statistics`.

    Returns:
        The windows, or None where no layer has any.
    """
    model = evaluation_view(model)
    heads = model.config.encoder_attention_heads
    focuses: dict[int, list[np.ndarray]] = defaultdict(list)

    def keep_focus(layer: int, terms: Sequence[Any]) -> None:
        for term in terms:
            if hasattr(term, "center") and hasattr(term, "width"):
                focus = _focus_of_real_queries(term.center, term.width, mask, heads)
                focuses[layer].append(focus)

    for layer, attention in enumerate(_encoder_attentions(model)):
        if getattr(attention, "locality", None) is not None:
            attention.observe_terms = partial(keep_focus, layer)  # of the view
    for batch in _batches(model, tokenizers, sentences, progress):
        mask = batch["attention_mask"].bool()
        model.get_encoder()(**batch)
        if not focuses:
            return None
    windows = [np.concatenate(batches, axis=2) for batches in focuses.values()]
    widths, offsets = map(list, zip(*windows, strict=True))
    return LearnedWindows(list(focuses), widths, offsets)


def _encoder_attentions(model: PreTrainedModel) -> list[Any]:
    """The self-attention of each layer of the encoder."""
    return [layer.self_attn for layer in model.get_encoder().layers]


def _focus_of_real_queries(center: Tensor, width: Tensor, mask: Tensor, heads: int) -> np.ndarray:
    """Returns width, and middle minus position, of the real queries, [2, H, queries]."""
    batch, length = mask.shape
    width = width.expand(batch, heads, length).float()
    offset = center.expand(batch, heads, length).float() - torch.arange(length, device=mask.device)
    focus = torch.stack([width, offset])  # [2, B, H, J]
    return focus.transpose(1, 2)[:, :, mask].cpu().numpy()


@torch.inference_mode()
def area_usage(
    model: PreTrainedModel,
    tokenizers: TokenizerPair,
    sentences: Sequence[str],
    *,
    progress: bool = False,
) -> dict[int, np.ndarray]:
    """Measures what each head of a 2D area takes from itself and from its neighbours.

    A layer's weights do not depend on its values. So the values of head s are made 1 in dimension s
    and 0 elsewhere, and what arrives at head h in dimension s is the share of its attention on head
    s. What is added to values on the way, such as relative positions, is measured with values of 0
    and subtracted.

    The model is a CSAN with `head_area` above 1; the other arguments are those of
    `attention_statistics`.

    Returns:
        For each encoder layer that attends by heads float64 [H, H]: row h is the share of head h's
            attention on each head s, the mean over all real queries; a row sums to 1. A head needs
            as many dimensions as there are heads.
    """
    model = evaluation_view(model)
    heads = model.config.encoder_attention_heads
    usage: dict[int, np.ndarray] = {}
    queries = 0

    def add_usage(layer: int, attention: Any, *call: Any) -> None:
        marked = _heads_seen(attention, heads, 1.0, *call)
        unmarked = _heads_seen(attention, heads, 0.0, *call)
        usage[layer] += (marked - unmarked)[mask].sum(dim=0).double().cpu().numpy()

    for layer, attention in enumerate(_encoder_attentions(model)):
        if hasattr(attention, "v_proj"):
            usage[layer] = np.zeros((heads, heads))
            # Of the view
            attention.register_forward_pre_hook(partial(add_usage, layer), with_kwargs=True)
    for batch in _batches(model, tokenizers, sentences, progress):
        mask = batch["attention_mask"].bool()
        queries += int(mask.sum())
        model.get_encoder()(**batch)
    return {layer: sums / queries for layer, sums in usage.items()}


def _heads_seen(
    attention: Any, heads: int, mark: float, arguments: tuple[Tensor, ...], options: dict[str, Any]
) -> Tensor:
    """Returns [B, I, H, H]: what arrives at each head where the values of head s are `mark` in
    dimension s.
    """
    seen = []

    def mark_values(module: nn.Module, arguments: object, output: Tensor) -> Tensor:
        values = torch.zeros_like(output).unflatten(-1, (heads, -1))
        diagonal = torch.arange(heads, device=output.device)
        values[:, :, diagonal, diagonal] = mark
        return values.flatten(-2)

    def read(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        seen.append(arguments[0].unflatten(-1, (heads, -1))[..., :heads])

    handles = [
        attention.v_proj.register_forward_hook(mark_values),
        attention.out_proj.register_forward_pre_hook(read),
    ]
    attention.forward(*arguments, **options)
    for handle in handles:
        handle.remove()
    return seen[0]


def _batches(
    model: PreTrainedModel,
    tokenizers: TokenizerPair,
    sentences: Sequence[str],
    progress: bool,
) -> Iterator[dict[str, Tensor]]:
    """Yields batches of sentences of similar lengths, padded on the right; of long ones fewer at a
    time.
    """
    texts = [text for text in sentences if text.strip()]
    # There are seldom more tokens than characters
    cells = [len(text) ** 2 for text in texts]
    with tqdm(
        total=len(texts), desc="attention", unit=" sentences", disable=not progress, delay=1
    ) as bar:
        for numbers in batches_by_length(cells, BATCH_CELLS):
            encoded = tokenizers.source(
                [texts[number] for number in numbers],
                padding=True,
                padding_side="right",
                return_tensors="pt",
            )
            check_positions(model, [encoded["input_ids"].shape[1]])
            yield {key: encoded[key].to(model.device) for key in ("input_ids", "attention_mask")}
            bar.update(len(numbers))
