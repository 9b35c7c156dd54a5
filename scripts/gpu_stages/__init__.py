# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The stages of `scripts/gpu.py`."""
