# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Exported models, run without torch: numpy, onnxruntime and tokenizers are all they need."""
