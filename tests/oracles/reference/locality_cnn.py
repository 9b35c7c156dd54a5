# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Loop oracle of CNN: convolutions before the self-attention of a layer (Yu et al., ICLR 2018,
"QANet", section 2.2).

The sub-layer's input x goes through a stack of convolutions, each inside a residual block,
f(layernorm(x)) + x; what comes out takes x's place in the layer, as the attention's input and in
its residual (section 2.2: the building block is [convolution-layer × # + self-attention-layer +
feed-forward-layer]). Float64, one position and channel at a time:

    a_i = layernorm(x_i)                                         own scale and offset, over the d channels
    c_i = Σ_t depthwise[:, t] ⊙ a_{i + t - m},  m = (k - 1) / 2     k taps on each channel by itself ("separable")
    x_i ← x_i + relu(pointwise c_i + bias)

- QANet: 4 separable convolutions of kernel 7 in an encoder block. The text names no activation; its
  public re-implementations have a ReLU after the pointwise convolution.
- Taps beyond the sentence, padding included, count as zero (after the layer norm: the norm of a
  zero vector is its offset). Ranks are of real tokens; a padding position yields zeros.
- k is odd. Dropout (the layer's own) would stand on the ReLU's output.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def normalised(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    centred = x - x.mean()
    return weight * centred / torch.sqrt((centred**2).mean() + epsilon) + bias


def convolved(states: list[Tensor], parameters: dict[str, Tensor], i: int) -> Tensor:
    """One convolution's output [d] at rank i, before the ReLU."""
    weight = parameters["depthwise.weight"]
    kernel_size = weight.shape[2]
    first = i - (kernel_size - 1) // 2
    total = torch.zeros_like(states[i])
    for t in range(kernel_size):
        j = first + t
        if 0 <= j < len(states):
            total = total + weight[:, 0, t] * states[j]
    return parameters["pointwise.weight"][:, :, 0] @ total + parameters["pointwise.bias"]


def convolutions(
    hidden_states: Tensor,
    parameters: dict[str, Tensor],
    *,
    key_padding_mask: Tensor | None = None,
    epsilon: float = 1e-5,
) -> Tensor:
    """The stack of convolutions of one layer.

    hidden_states [B, I, d]; parameters by name, kernels [out, in (of the group), taps]; key_padding_mask [B, I], True
    = real token; epsilon of the layer norm. Returns [B, I, d] in float64."""
    B, I, _ = hidden_states.shape  # noqa: E741
    outputs = []
    num_convolutions = 1 + max(int(name.split(".")[0]) for name in parameters)
    for b in range(B):
        real = [i for i in range(I) if key_padding_mask is None or bool(key_padding_mask[b, i])]
        states = [hidden_states[b, i].double() for i in real]
        for n in range(num_convolutions):
            layer = {
                name.removeprefix(f"{n}."): p.double()
                for name, p in parameters.items()
                if name.startswith(f"{n}.")
            }
            before = [
                normalised(x, layer["norm.weight"], layer["norm.bias"], epsilon) for x in states
            ]
            states = [x + F.relu(convolved(before, layer, i)) for i, x in enumerate(states)]
        for i in range(I):
            outputs.append(
                states[real.index(i)]
                if i in real
                else torch.zeros_like(hidden_states[b, i]).double()
            )
    return torch.stack(outputs).view(hidden_states.shape)
