# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The registry's lines: one for each locality method. Their order is that of descriptions."""

from .gaussian import STRATEGIES, Gaussian
from .locality import register_locality
from .relative_positions import RelativePositions
from .window_and_heads import HeadArea, Window

LOCALITY_METHODS = [
    register_locality(Window),
    register_locality(HeadArea),
    register_locality(RelativePositions),
    register_locality(Gaussian),
]

LOCALNESS_WINDOWS = STRATEGIES
"""Values of the config's `localness_window`."""
