# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Loop oracle of BLOCK: bi-directional block self-attention, Bi-BloSA (Shen et al., ICLR 2018,
sections 2 and 3).

It takes the place of multi-head self-attention (its projections included) in a layer; residual and
layer norm stay. One sentence, one token at a time, float64. Ranks are among real tokens; a padding
token yields zeros.

A direction, "past" or "future", has width w and its own parameters. All
attention is multi-dimensional, with one softmax for each feature. σ is ELU, as the authors'
functions have it by default (their SNLI script sets ReLU; the paper leaves it open).

    x̂_i = σ(W_input x_i + b_input)                      d to w: the fully connected layer before mBloSA (section 3.2)
    h_i = Σ_j softmax_j(f(x̂_i, x̂_j)) ⊙ x̂_j              j before (after) i in the block of i: intra-block (section 3.1)
    v_l = Σ_i softmax_i(W_score σ(W_hidden h_i + b_hidden)) ⊙ h_i        i in block l: source2token (section 2.2)
    o_l = Σ_m softmax_m(f'(v_l, v_m)) ⊙ v_m             block m before (after) block l: inter-block
    e_l = G ⊙ o_l + (1 - G) ⊙ v_l                       G = sigmoid(W_context o_l + W_local v_l + b_local)
    u_i = G' ⊙ F + (1 - G') ⊙ x̂_i                       context fusion, on c = [x̂_i; h_i; e_l] with l the block of i:
                                                        F = σ(W_candidate c + b), G' = sigmoid(W_fusion c + b)
    y_i = W_output [u_i past; u_i future] + b      2w to d: the Transformer's output projection

    f(a, b) = 5 tanh((W_target a + W_source b + bias) / 5)      a attends to b (section 2.3, c = 5; DiSAN's constant)

- Block l holds the ranks l·r .. l·r + r - 1; the last block may be shorter and is never filled up.
  r = 4: the paper recommends r = ∛(2n), which is 3.1 to 4.6 for sentences of 15 to 50 tokens, and
  Yang et al.'s released layer has 4.
- The query itself is masked (M_ij = 0 for i < j only, section 2.3): it comes back through x̂ in the
  fusion. A token without a visible key has h = 0, a block without one o = 0, as the authors' code
  multiplies the weights by the mask; such an h = 0 still takes part in the summary of its block.
- Intra- and inter-block attention have parameters of their own, as in the authors' code.
- The bias of W_score is left out: it shifts all tokens' scores alike and cancels in the softmax.
- Not in a causal layer: v_l reads the whole block of a token, so later tokens too. The product
  refuses it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

TANH_SCALE = 5.0


def masked_self_attention(
    states: list[Tensor], parameters: dict[str, Tensor], name: str, direction: str
) -> list[Tensor]:
    """Each state's average of the states before it (past) or after it (future), 0 where there
    is none.
    """
    target, source, bias = (
        parameters[f"{name}.{part}"] for part in ("target.weight", "source.weight", "source.bias")
    )
    outputs = []
    for i, state in enumerate(states):
        visible = states[:i] if direction == "past" else states[i + 1 :]
        if not visible:
            outputs.append(torch.zeros_like(state))
            continue
        scores = [
            TANH_SCALE * torch.tanh((target @ state + source @ seen + bias) / TANH_SCALE)
            for seen in visible
        ]
        weights = torch.softmax(
            torch.stack(scores), dim=0
        )  # [visible, w]: one softmax for each feature
        outputs.append(sum(weight * seen for weight, seen in zip(weights, visible, strict=True)))
    return outputs


def summary_of(states: list[Tensor], parameters: dict[str, Tensor], name: str) -> Tensor:
    """source2token attention: one vector for a block."""
    hidden = [
        F.elu(parameters[f"{name}.hidden.weight"] @ h + parameters[f"{name}.hidden.bias"])
        for h in states
    ]
    weights = torch.softmax(
        torch.stack([parameters[f"{name}.score.weight"] @ h for h in hidden]), dim=0
    )
    return sum(weight * state for weight, state in zip(weights, states, strict=True))


def one_direction(
    tokens: list[Tensor], parameters: dict[str, Tensor], direction: str, block_length: int
) -> list[Tensor]:
    """u_i [w] of every token of one sentence."""
    weights = {
        name.removeprefix(direction + "."): p
        for name, p in parameters.items()
        if name.startswith(direction)
    }
    mapped = [F.elu(weights["input.weight"] @ x + weights["input.bias"]) for x in tokens]
    blocks = [mapped[start : start + block_length] for start in range(0, len(mapped), block_length)]
    local = [masked_self_attention(block, weights, "intra", direction) for block in blocks]
    summaries = [summary_of(block, weights, "summary") for block in local]
    context = masked_self_attention(summaries, weights, "inter", direction)
    outputs = []
    for block, h_of_block, v, o in zip(blocks, local, summaries, context, strict=True):
        gate = torch.sigmoid(
            weights["gate.context.weight"] @ o
            + weights["gate.local.weight"] @ v
            + weights["gate.local.bias"]
        )
        e = gate * o + (1 - gate) * v
        for x, h in zip(block, h_of_block, strict=True):
            features = torch.cat([x, h, e])
            candidate = F.elu(
                weights["fusion.candidate.weight"] @ features + weights["fusion.candidate.bias"]
            )
            fusion_gate = torch.sigmoid(
                weights["fusion.gate.weight"] @ features + weights["fusion.gate.bias"]
            )
            outputs.append(fusion_gate * candidate + (1 - fusion_gate) * x)
    return outputs


def block_self_attention(
    hidden_states: Tensor,
    parameters: dict[str, Tensor],
    *,
    block_length: int = 4,
    key_padding_mask: Tensor | None = None,
) -> Tensor:
    """Bi-BloSA of every sentence.

    hidden_states [B, I, d]; parameters by name, matrices [out, in]; key_padding_mask [B, I],
    True = real token. Returns [B, I, d] in float64."""
    parameters = {name: parameter.double() for name, parameter in parameters.items()}
    B, I, _ = hidden_states.shape  # noqa: E741
    outputs = torch.zeros(hidden_states.shape, dtype=torch.float64)
    for b in range(B):
        real = [i for i in range(I) if key_padding_mask is None or bool(key_padding_mask[b, i])]
        tokens = [hidden_states[b, i].double() for i in real]
        pasts = one_direction(tokens, parameters, "past", block_length)
        futures = one_direction(tokens, parameters, "future", block_length)
        for i, past, future in zip(real, pasts, futures, strict=True):
            y = parameters["output.weight"] @ torch.cat([past, future]) + parameters["output.bias"]
            outputs = outputs.index_put((torch.tensor(b), torch.tensor(i)), y)
    return outputs
