# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Loop oracle of RNNsearch: a bi-directional encoder and an attentive decoder (Bahdanau et al.,
ICLR 2015), with the LSTM, the energies, the attentional state and the input feeding of Luong et al.
(EMNLP 2015).

One sentence, one step, one source position at a time, without dropout. Written from the papers and
the parameters' names, not from the product. Autograd differentiates it; the result has the weights'
type."""

from collections.abc import Mapping

import torch
from torch import Tensor

ATTENTION = "model.decoder.attention"

State = tuple[Tensor, Tensor]  # an LSTM's hidden state and its cell, of one width


def lstm_step(weights: Mapping[str, Tensor], lstm: str, x: Tensor, state: State) -> State:
    """One step of the torch.nn.LSTM called `lstm`; its gates stand in the order i, f, g, o."""
    hidden, cell = state
    gates = weights[f"{lstm}.weight_ih_l0"] @ x + weights[f"{lstm}.bias_ih_l0"]
    gates = gates + weights[f"{lstm}.weight_hh_l0"] @ hidden + weights[f"{lstm}.bias_hh_l0"]
    i, f, g, o = gates.chunk(4)
    cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


def encode(weights: Mapping[str, Tensor], source: list[int]) -> tuple[list[Tensor], Tensor]:
    """The source states s_j [d] of the last layer, and its last states of both directions in one
    vector [d]. Each layer reads the states of the one before, the first the embeddings.
    """
    states = [weights["model.encoder.embed_tokens.weight"][token] for token in source]
    layer = 0
    while f"model.encoder.layers.{layer}.forwards.weight_hh_l0" in weights:
        lstm = f"model.encoder.layers.{layer}"
        width = weights[f"{lstm}.forwards.weight_hh_l0"].shape[1]  # d / 2
        forward, backward = {}, {}

        state = states[0].new_zeros(width), states[0].new_zeros(width)
        for j in range(len(source)):
            state = lstm_step(weights, f"{lstm}.forwards", states[j], state)
            forward[j] = state[0]

        state = states[0].new_zeros(width), states[0].new_zeros(width)
        for j in reversed(range(len(source))):
            state = lstm_step(weights, f"{lstm}.backwards", states[j], state)
            backward[j] = state[0]

        states = [torch.cat([forward[j], backward[j]]) for j in range(len(source))]
        layer += 1
    return states, torch.cat([forward[len(source) - 1], backward[0]])


def energy(
    weights: Mapping[str, Tensor], attention: str, hidden: Tensor, source_state: Tensor
) -> Tensor:
    """How well the decoder's hidden state [d] and one source state [d] fit together: a scalar."""
    if attention == "dot":
        return hidden @ source_state
    key = weights[f"{ATTENTION}.key_projection.weight"] @ source_state
    if attention == "general":
        return hidden @ key
    if attention == "additive":
        query = weights[f"{ATTENTION}.query_projection.weight"] @ hidden
        query = query + weights[f"{ATTENTION}.query_projection.bias"]
        return weights[f"{ATTENTION}.energy.weight"].flatten() @ torch.tanh(query + key)
    raise KeyError(attention)


def attend(
    weights: Mapping[str, Tensor], attention: str, hidden: Tensor, source_states: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """The attentional state [d] of the decoder's hidden state [d], and the attention weights [J]."""
    alpha = torch.softmax(
        torch.stack([energy(weights, attention, hidden, s) for s in source_states]), dim=0
    )
    context = torch.zeros_like(source_states[0])
    for j, source_state in enumerate(source_states):
        context = context + alpha[j] * source_state
    output = weights[f"{ATTENTION}.output_projection.weight"] @ torch.cat([context, hidden])
    return torch.tanh(output), alpha


def logits(
    weights: Mapping[str, Tensor],
    source: list[int],
    target: list[int],
    *,
    attention: str,
    input_feeding: bool,
) -> tuple[Tensor, Tensor]:
    """Logits [I, V] and attention weights [I, J] of the decoder inputs `target`, I tokens, for
    `source`, J tokens.

    attention: "dot" h·s_j, "general" h·(K s_j) or "additive" v·tanh(Q h + q + K s_j), h being the
    hidden state of the same step. With input_feeding a step reads [embedding ; attentional state of
    the step before], zeros at first."""
    source_states, last = encode(weights, source)
    bridge = torch.tanh(
        weights["model.decoder.bridge.weight"] @ last + weights["model.decoder.bridge.bias"]
    )
    hidden, cell = bridge.chunk(2)
    attentional = hidden.new_zeros(len(weights[f"{ATTENTION}.output_projection.weight"]))
    rows, alphas = [], []
    for token in target:
        x = weights["model.decoder.embed_tokens.weight"][token]
        if input_feeding:
            x = torch.cat([x, attentional])
        hidden, cell = lstm_step(weights, "model.decoder.lstm", x, (hidden, cell))
        attentional, alpha = attend(weights, attention, hidden, source_states)
        rows.append(weights["lm_head.weight"] @ attentional + weights["lm_head.bias"])
        alphas.append(alpha)
    return torch.stack(rows), torch.stack(alphas)
