# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The table of locality methods. A checkpoint carries the files of those that it uses."""

from .distances import BiDirectional, HeadArea, RelativeBias, RelativePositions, Window
from .gaussian import Gaussian, LocalHard, MovingGaussian, Neighbor
from .lines import Line
from .locality import LocalityMethod, register_locality
from .sublayers import Block, Convolution

# In the order in which a layer applies them
LOCALITY_METHODS: list[type[LocalityMethod]] = [
    Window,
    HeadArea,
    BiDirectional,
    RelativePositions,
    RelativeBias,
    Line,
    Neighbor,
    LocalHard,
    Gaussian,
    MovingGaussian,
    Block,
    Convolution,
]

for method in LOCALITY_METHODS:
    register_locality(method)
