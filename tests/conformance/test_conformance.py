# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Every public model class under the library's own mixins, and Marian beside them."""

import pytest
from conformance.library_tests import LibraryTests, UnavailableError
from conformance.testers import CSAN_CONFIGURATIONS, conformance_test
from transformers import MarianModel, MarianMTModel

from csan_hf import (
    CsanForConditionalGeneration,
    CsanForSequenceClassification,
    CsanForTokenClassification,
    CsanModel,
    PervasiveAttentionForConditionalGeneration,
    PervasiveAttentionModel,
)

try:
    library = LibraryTests()
except UnavailableError as error:
    pytest.skip(f"the library's tests are not available: {error}", allow_module_level=True)


def _add(model_class: type, name: str = "", options: dict | None = None) -> None:
    case = conformance_test(library, model_class, name, options)
    globals()[case.__name__] = case


for marian in (MarianModel, MarianMTModel):
    _add(marian)
for model_class, names in {  # each configuration once, and generation where it differs
    CsanForConditionalGeneration: ("plain", "2D", "everything"),
    CsanModel: ("plain", "Gaussian"),
    CsanForSequenceClassification: ("1D",),
    CsanForTokenClassification: ("2D",),
}.items():
    for name in names:
        _add(model_class, name, CSAN_CONFIGURATIONS[name])
for pervasive in (PervasiveAttentionModel, PervasiveAttentionForConditionalGeneration):
    _add(pervasive)
if library.MarianModelTest is not None:
    MarianModelTest = library.MarianModelTest
