# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
import pytest
from torch.nn.attention import flex_attention


@pytest.fixture
def flex_without_compiler(monkeypatch):
    """FlexAttention's definition as it stands: to trace each call takes longer than to run it."""
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
