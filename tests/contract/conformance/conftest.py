# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The library's mixins look models up by name: theirs stand here, for these tests alone."""

import pytest
from contract.conformance.report import reason_to_skip
from transformers.models.auto import modeling_auto

from csan_hf.families import FAMILIES

MAPPINGS = {
    "AutoModel": "MODEL_MAPPING_NAMES",
    "AutoModelForSeq2SeqLM": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForSequenceClassification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "AutoModelForTokenClassification": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
}

MARKERS = (
    "accelerate_tests flash_attn_test flash_attn_3_test flash_attn_4_test generate order slow "
    "torch_compile_test"
)


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS.split():
        config.addinivalue_line("markers", f"{marker}: a mark of transformers' own tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the library's tests that cannot apply, and those of what this machine lacks."""
    left_out = [item for item in items if cannot_apply(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]


def cannot_apply(item: pytest.Item) -> bool:
    if item.path.parent.name != "conformance" or not getattr(item, "cls", None):
        return False
    lacks_something = getattr(item.obj, "__unittest_skip__", False)
    return lacks_something or reason_to_skip(item.cls.__name__, item.name) is not None


@pytest.fixture(autouse=True)
def _model_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, family in FAMILIES.items():
        for auto, mapping in MAPPINGS.items():
            if auto in family.classes:
                names = getattr(modeling_auto, mapping)
                monkeypatch.setitem(names, name, family.classes[auto])
