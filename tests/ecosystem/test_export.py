# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""torch.export by the library's exporter, verified at batch sizes and lengths that it did not see.

ONNX: tests/hub/test_onnx.py.
"""

from functools import cache

import numpy as np
import pytest
import tiny
import torch
from families import ONE_LAYER, PLAIN_LAYER, sources, targets
from transformers.exporters.base import ExportedModel
from transformers.exporters.exporter_dynamo import DynamoConfig, DynamoExporter

MODELS = {
    "csan, plain": lambda: tiny.csan(seed=1, max_position_embeddings=256, **PLAIN_LAYER),
    "csan, everything": lambda: tiny.csan(seed=1, max_position_embeddings=256, **ONE_LAYER),
    "pervasive attention": lambda: tiny.grid(seed=1, num_layers=1),
    "pervasive attention, gated, max and attention": lambda: tiny.grid(
        seed=1, num_layers=1, gated=True, aggregation="max_attention", position_embeddings="learned"
    ),
}
every_model = pytest.mark.parametrize("name", MODELS)
SEEN = ((6, 4, 5), 5)
UNSEEN = (((9, 3), 11), ((17, 2, 5, 8, 11), 4), ((23,), 30), ((12, 40), 3))
DYNAMIC = {name: {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO} for name in ("input_ids", "attention_mask")}
DYNAMIC["decoder_input_ids"] = DYNAMIC["input_ids"]


def batch_of(lengths: tuple[int, ...], target_length: int) -> dict:
    return {**sources(lengths), "decoder_input_ids": targets(len(lengths), target_length)}


@torch.no_grad()
def logits_of(model, batch: dict) -> torch.Tensor:
    return model(**batch, use_cache=False).logits


def assert_right(model, exported, shapes=(SEEN, *UNSEEN)) -> None:
    for lengths, target_length in shapes:
        batch = batch_of(lengths, target_length)
        found = torch.as_tensor(np.asarray(exported(**batch).logits))
        torch.testing.assert_close(found, logits_of(model, batch), rtol=1e-4, atol=1e-5)


@cache
def exported_for_all_shapes(name):
    """A model and its program, made once."""
    model = MODELS[name]()
    config = DynamoConfig(dynamic=True, dynamic_shapes=DYNAMIC)
    return model, DynamoExporter().export(model, {**batch_of(*SEEN), "use_cache": False}, config=config)


@every_model
def test_exporter_saves_and_loads(name, tmp_path):
    model, exported = exported_for_all_shapes(name)
    assert_right(model, exported)
    exported.save_pretrained(tmp_path)
    assert_right(model, ExportedModel.from_pretrained(tmp_path))


def test_a_local_layer_is_exported_in_one_way_for_all_lengths():
    """From 128 tokens on, Python would go on in blocks; an exported program cannot turn off."""
    model, exported = exported_for_all_shapes("csan, everything")
    assert_right(model, exported, (((140, 9), 7), ((200,), 150)))


def test_beyond_the_sinusoids_an_exported_program_refuses():
    _, exported = exported_for_all_shapes("csan, everything")
    with pytest.raises(AssertionError, match="Guard failed"):
        exported(**batch_of((257,), 3))
