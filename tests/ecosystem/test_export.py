# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""torch.export and ONNX by the library's exporters, verified at batch sizes and lengths that they did not see."""

import json
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from families import ONE_LAYER, PLAIN_LAYER, sources, targets
from transformers.exporters.base import ExportedModel
from transformers.exporters.exporter_dynamo import DynamoConfig, DynamoExporter

import csan_hf_cli
from csan_hf.hub.onnx import OnnxTranslationModel, export_onnx

MODELS = {
    "csan, plain": lambda: tiny.csan(seed=1, max_position_embeddings=256, **PLAIN_LAYER),
    "csan, everything": lambda: tiny.csan(seed=1, max_position_embeddings=256, **ONE_LAYER),
    "pervasive attention": lambda: tiny.grid(seed=1, num_layers=1),
    "pervasive attention, residual": lambda: tiny.grid(
        seed=1, num_layers=1, **tiny.RESIDUAL, aggregation="gated_max", position_embeddings="sinusoidal"
    ),
    "pervasive attention, gated, max and attention": lambda: tiny.grid(
        seed=1, num_layers=1, gated=True, aggregation="max_attention", position_embeddings="learned"
    ),
    "conv_s2s": lambda: tiny.convolutional(seed=1, encoder_layers=1, decoder_layers=1),
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


# ---- ONNX: exported models translate as the models that they were made of

PERVASIVE = {name: make for name, make in MODELS.items() if "pervasive" in name}
# Of local attention a window alone, for speed; the checkpoint of the script's test has every kind
WINDOW = {**PLAIN_LAYER, "local_window": 5, "localness_layers": [0]}
ONNX_MODELS = {"csan, window": lambda: tiny.csan(seed=1, **WINDOW), **PERVASIVE, "conv_s2s": MODELS["conv_s2s"]}


@pytest.mark.parametrize("name", ONNX_MODELS)
def test_same_translations(name, tmp_path):
    model = ONNX_MODELS[name]()
    batch = sources((9, 3, 6, 1))  # another number and other lengths than were traced
    export_onnx(model, tmp_path / "onnx")
    exported = OnnxTranslationModel.from_pretrained(tmp_path / "onnx")
    decoder_input_ids = torch.randint(3, 11, (4, 6))
    alone = {"input_ids": batch["input_ids"][:1]}
    for inputs, options in ((batch, {}), (batch, {"num_beams": 3, "num_return_sequences": 2}), (alone, {})):
        whole = {**inputs, "decoder_input_ids": decoder_input_ids[: len(inputs["input_ids"])]}
        torch.testing.assert_close(exported(**whole).logits, logits_of(model, whole), rtol=1e-4, atol=1e-5)
        expected = model.generate(**inputs, max_new_tokens=8, **options)
        assert torch.equal(exported.generate(**inputs, max_new_tokens=8, **options), expected)


def test_int8_by_the_script(tmp_path, capsys):
    """A trained checkpoint, its tokenizer and the pipeline."""
    root = Path(__file__).parents[2]
    sentences = json.loads((root / "tests/fixtures/csan/expected.json").read_text())["sentences"]
    (tmp_path / "source.txt").write_text("".join(f"{line}\n" for line in sentences))
    command = ["export-onnx", str(root / "tests/fixtures/csan"), str(tmp_path / "onnx"), "--precision", "int8"]
    assert csan_hf_cli.main([*command, "--check", str(tmp_path / "source.txt")]) == 0
    assert f"{len(sentences)} of {len(sentences)} translations are the same" in capsys.readouterr().out
    assert (tmp_path / "onnx/tokenizer.json").is_file()
    assert csan_hf_cli.main(command) == 2
    assert "is not empty" in capsys.readouterr().err


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(OSError, match=r"/onnx"):
        OnnxTranslationModel.from_directory(tmp_path / "onnx")


def test_packages_that_are_missing_are_named_with_the_extra_that_brings_them(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"^ONNX needs onnxscript: pip install csan_hf\[onnx\]$"):
        export_onnx(ONNX_MODELS["csan, window"](), tmp_path / "onnx")


def test_what_cannot_be_exported_is_said(tmp_path):
    model = ONNX_MODELS["csan, window"]()
    with pytest.raises(KeyError, match="int4"):
        export_onnx(model, tmp_path / "onnx", precision="int4")
    with pytest.raises(ValueError, match=r"must be float32, got torch.bfloat16: call model.float\(\)"):
        export_onnx(model.bfloat16(), tmp_path / "onnx")
    with pytest.raises(ValueError, match=r"RNNsearch cannot be exported: torch\.export unrolls an LSTM"):
        export_onnx(tiny.recurrent(), tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()
