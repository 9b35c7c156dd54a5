# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The registry's lines: one for each locality method. Their order is that of descriptions."""

from .bi_directional import BiDirectional
from .block import Block
from .convolutions import Convolution
from .gaussian import STRATEGIES, Gaussian
from .local_hard import LocalHard
from .locality import register_locality
from .neighbor import Neighbor
from .relative_positions import RelativePositions
from .window_and_heads import HeadArea, Window

LOCALITY_METHODS = [
    register_locality(Window),
    register_locality(HeadArea),
    register_locality(BiDirectional),
    register_locality(RelativePositions),
    register_locality(Neighbor),
    register_locality(LocalHard),
    register_locality(Gaussian),
    register_locality(Block),
    register_locality(Convolution),
]

LOCALNESS_WINDOWS = STRATEGIES
"""Values of the config's `localness_window`."""
