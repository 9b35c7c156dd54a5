# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The laboratory: suites of systems that are trained and compared, the report, statistics of
attention.
"""

from csan_hf_runtime.extras import needs_extra

with needs_extra("lab"):
    import markdown  # noqa: F401
    import matplotlib  # noqa: F401
