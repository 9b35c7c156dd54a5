# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Loop oracle of convolutional sequence to sequence learning (Gehring et al., ICML 2017, section
3).

Where its text and fairseq's `fconv` differ, `fconv` decides. One sentence, one position, one kernel
tap at a time, without dropout: a sequence is a list of vectors. Written from these sources and the
parameters' names, not from the product. Autograd differentiates it; the result has the weights'
type."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

SQRT_HALF = math.sqrt(0.5)  # keeps the variance of a sum of two terms


def normalized_weight(weights: Mapping[str, Tensor], name: str) -> Tensor:
    """w = g v / ||v|| for every output unit (Salimans and Kingma, 2016), shaped as the directions
    v.
    """
    magnitudes = weights[f"{name}.magnitude"]
    directions = weights[f"{name}.direction"]
    return torch.stack(
        [g * v / v.square().sum().sqrt() for g, v in zip(magnitudes, directions, strict=True)]
    )


def linear(weights: Mapping[str, Tensor], name: str, vectors: list[Tensor]) -> list[Tensor]:
    matrix = normalized_weight(weights, name)
    bias = weights[f"{name}.bias"]
    return [matrix @ vector + bias for vector in vectors]


def gated_convolution(
    weights: Mapping[str, Tensor], name: str, vectors: list[Tensor], zeros_before: int
) -> list[Tensor]:
    """A convolution from d to 2d channels and its gated linear unit: as many vectors [d] as it is
    given.

    The kernel [2d, d, k] of position i begins at i - zeros_before; beyond both ends there are
    zeros."""
    kernel = normalized_weight(weights, name)
    bias = weights[f"{name}.bias"]
    outputs = []
    for i in range(len(vectors)):
        total = bias
        for tap in range(kernel.shape[2]):
            position = i - zeros_before + tap
            if 0 <= position < len(vectors):
                total = total + kernel[:, :, tap] @ vectors[position]
        value, gate = total.chunk(2)
        outputs.append(value * torch.sigmoid(gate))
    return outputs


def embed(weights: Mapping[str, Tensor], side: str, tokens: list[int]) -> list[Tensor]:
    token, position = (
        weights[f"{side}.embed_tokens.weight"],
        weights[f"{side}.embed_positions.weight"],
    )
    return [token[tokens[i]] + position[i] for i in range(len(tokens))]


def encode(
    weights: Mapping[str, Tensor],
    source: list[int],
    kernel_size: int,
    layers: int,
    gradient_scale: float,
) -> tuple[list[Tensor], list[Tensor]]:
    """Keys z_j and values (z_j + e_j) sqrt(0.5); z's gradient is multiplied by gradient_scale, e's
    is not.
    """
    side = "model.encoder"
    embeddings = embed(weights, side, source)
    x = linear(weights, f"{side}.input_projection", embeddings)
    for n in range(layers):
        convolved = gated_convolution(
            weights, f"{side}.layers.{n}.convolution.convolution", x, kernel_size // 2
        )
        x = [(new + residual) * SQRT_HALF for new, residual in zip(convolved, x, strict=True)]
    keys = linear(weights, f"{side}.output_projection", x)
    keys = [z * gradient_scale + (z * (1 - gradient_scale)).detach() for z in keys]
    return keys, [(z + e) * SQRT_HALF for z, e in zip(keys, embeddings, strict=True)]


def attend(query: Tensor, keys: list[Tensor], values: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The context, scaled by J sqrt(1 / J) for J source tokens (section 3.4), and the attention
    weights [J].
    """
    a = torch.softmax(torch.stack([query @ key for key in keys]), dim=0)
    context = torch.zeros_like(values[0])
    for j in range(len(values)):
        context = context + a[j] * values[j]
    return context * math.sqrt(len(values)), a


def logits(
    weights: Mapping[str, Tensor],
    source: list[int],
    target: list[int],
    *,
    kernel_size: int,
    encoder_layers: int,
    decoder_layers: int,
) -> tuple[Tensor, list[Tensor]]:
    """Logits [I, V] of the decoder inputs `target`, I tokens, and attention weights [I, J] of each
    decoder layer.

    kernel_size: k in tokens, odd, in every layer. The gradient of the encoder's output is
    multiplied by 1 / (2 decoder_layers)."""
    keys, values = encode(weights, source, kernel_size, encoder_layers, 1 / (2 * decoder_layers))

    side = "model.decoder"
    embeddings = embed(weights, side, target)
    x = linear(weights, f"{side}.input_projection", embeddings)
    attentions = []
    for n in range(decoder_layers):
        layer = f"{side}.layers.{n}"
        convolved = gated_convolution(
            weights, f"{layer}.convolution.convolution", x, kernel_size - 1
        )
        projected = linear(weights, f"{layer}.query_projection", convolved)
        queries = [(q + e) * SQRT_HALF for q, e in zip(projected, embeddings, strict=True)]
        contexts, rows = zip(*(attend(query, keys, values) for query in queries), strict=True)
        attended = linear(weights, f"{layer}.context_projection", list(contexts))
        attended = [(new + old) * SQRT_HALF for new, old in zip(attended, convolved, strict=True)]
        x = [(new + residual) * SQRT_HALF for new, residual in zip(attended, x, strict=True)]
        attentions.append(torch.stack(rows))
    outputs = linear(weights, f"{side}.output_projection", x)
    return torch.stack(
        [weights["lm_head.weight"] @ y + weights["lm_head.bias"] for y in outputs]
    ), attentions
