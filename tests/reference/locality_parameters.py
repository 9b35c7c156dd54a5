# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Added parameters of the locality methods, worked out from their shapes, beside Table 1 of Yang et al., NAACL 2019.

Base: d 512, 8 heads, D = d / H = 64, three encoder layers. In millions, three layers unless said otherwise:

| method     | paper | here  | how many a layer                                                                    |
| ---------- | ----- | ----- | ----------------------------------------------------------------------------------- |
| BI_DIRECT  | +0.0  | +0.00 | none                                                                                |
| REL_POS    | +0.1  | +0.10 | 2 tables · H · (2·16 + 1) · D = 33,792                                              |
| NEIGHBOR   | +0.4  | +0.40 | W [d/2, d] and U [H, d/2] = 133,120                                                 |
| LOCAL_HARD | +0.4  | +0.40 | W [d/2, d] and U [H, d/2] = 133,120                                                 |
| LOCAL_SOFT | +0.8  | +0.81 | W [d, d] and two U [H, d] = 270,336                                                 |
| BLOCK      | +6.0  | +6.27 | Bi-BloSA of width 300 in place of the four projections = 2,088,488                  |
| CNN        | +42.6 | +3.21 | 4 separable convolutions of kernel 7 = 1,069,056                                    |
|            |       | +42.5 | 6 full convolutions of kernel 9 = 14,164,992                                        |
| 1D, 2D     | +0.0  | +0.00 | none                                                                                |

What the paper's numbers say about what its authors did:

- REL_POS: tables shared by the heads (the authors' released layer) give 4,224 a layer, +0.01M in three layers; Shaw's
  base setting, "unique edge representations per layer and head" with k = 16, gives the +0.1M.
- NEIGHBOR and LOCAL_HARD: half of LOCAL_SOFT, which is W_p alone; one predicted number with a W of [d, d] would be
  +0.8M. A hidden layer of d/2 gives +0.4M, and the two together LOCAL_SOFT's +0.8M, which the preprint says combines
  them. The released layer would give +0.4M with four local heads of eight (its W is [64 · local heads, d]); neither
  paper says that only half of the heads were local.
- BLOCK: nothing natural gives +6.0M. Bi-BloSA of width 300, its authors' own ("600D Bi-BloSAN"), is 0.27M (4 %) above.
  Of width d/2 it is +3.94M, by chance what Yang et al.'s released layer (dot-product attention in blocks of four,
  source2token, inter-block attention, gate, concatenation) adds in three layers, +3.95M; in all six, as their
  released model has it, that layer adds +7.90M.
- CNN: a separable convolution of width 512 has 0.27M; +42.6M would be 159 of them. So theirs were full convolutions,
  162 d² = 42.47M in all: 54 taps in each of three layers, or 27 in each of six. Six of kernel 9 in three layers give
  42.49M, 0.1M below; QANet's four of kernel 7 made full give 22.0M in three layers, 44.1M in six.
"""

from __future__ import annotations

import math

from reference.locality_block import block_parameter_shapes
from reference.locality_cnn import cnn_parameter_shapes


def rel_pos_parameters(d: int, num_heads: int, clip: int = 16, per_head: bool = True) -> int:
    return 2 * (num_heads if per_head else 1) * (2 * clip + 1) * (d // num_heads)


def gaussian_parameters(d: int, num_heads: int, hidden_width: int, predicted_numbers: int) -> int:
    """`predicted_numbers`: 1 for NEIGHBOR and LOCAL_HARD (hidden width d/2), 2 for LOCAL_SOFT (d)."""
    return hidden_width * d + predicted_numbers * num_heads * hidden_width


def block_parameters(d: int, width: int) -> int:
    """What Bi-BloSA has more than the query, key, value and output projections that it replaces."""
    return sum(math.prod(shape) for shape in block_parameter_shapes(d, width).values()) - 4 * (d * d + d)


def cnn_parameters(d: int, kernel_size: int = 7, num_convolutions: int = 4) -> int:
    shapes = cnn_parameter_shapes(d, kernel_size, num_convolutions)
    return sum(math.prod(shape) for shape in shapes.values())
