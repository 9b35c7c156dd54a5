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

- REL_POS: Shaw's base setting, tables of each head with k = 16; tables shared by the heads would be +0.01M.
- NEIGHBOR and LOCAL_HARD: a hidden layer of d/2; one of d would be LOCAL_SOFT's W alone, +0.8M.
- BLOCK: nothing natural gives +6.0M; Bi-BloSA of width 300, its authors' own ("600D Bi-BloSAN"), is 4 % above.
- CNN: +42.6M would be 159 separable convolutions of width 512, so theirs were full ones.
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
