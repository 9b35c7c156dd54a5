# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
from functools import cache

import pytest
from exports import EXPORTED

from csan_hf.hub.onnx import export_onnx


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """A model by name, and the folder of its graphs, made once."""

    @cache
    def make(name):
        model = EXPORTED[name]()
        return model, export_onnx(model, tmp_path_factory.mktemp("graphs"))

    return make
