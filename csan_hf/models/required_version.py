# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The transformers that the code of a checkpoint needs, checked before an older one fails over a missing name."""

from transformers.utils.versions import require_version

MINIMUM_TRANSFORMERS = "5.23"

require_version(
    f"transformers>={MINIMUM_TRANSFORMERS}",
    f"This checkpoint's code needs transformers {MINIMUM_TRANSFORMERS} or newer: "
    f"pip install -U 'transformers>={MINIMUM_TRANSFORMERS}'",
)
