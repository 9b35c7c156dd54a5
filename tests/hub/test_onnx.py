# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Exported models translate as the models that they were made of."""

import json
import sys
from pathlib import Path

import pytest
import tiny
import torch

import csan_hf_cli
from csan_hf.hub.onnx import OnnxTranslationModel, export_onnx

MODELS = {
    # Of local attention a window alone, for speed; the checkpoint of the script's test has every kind
    "csan": lambda: tiny.csan(
        seed=1, encoder_layers=1, decoder_layers=1, local_window=5, head_area=1, localness_layers=[0]
    ),
    "pervasive attention": lambda: tiny.grid(seed=1, num_layers=1),
    "pervasive attention, gated, max and attention": lambda: tiny.grid(
        seed=1, num_layers=1, gated=True, aggregation="max_attention", position_embeddings="learned"
    ),
}


def sources():
    """Four sentences of other lengths and another number than the ones that were traced."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 11, (4, 9), generator=generator)
    mask = (torch.arange(9) < torch.tensor([9, 3, 6, 1])[:, None]).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


@pytest.mark.parametrize("name", MODELS)
def test_same_translations(name, tmp_path):
    model = MODELS[name]()
    export_onnx(model, tmp_path / "onnx")
    exported = OnnxTranslationModel.from_pretrained(tmp_path / "onnx")
    decoder_input_ids = torch.randint(3, 11, (4, 6))
    with torch.no_grad():
        expected = model(**sources(), decoder_input_ids=decoder_input_ids).logits
    actual = exported(**sources(), decoder_input_ids=decoder_input_ids).logits
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    for options in ({}, {"num_beams": 3, "num_return_sequences": 2}):
        expected = model.generate(**sources(), max_new_tokens=8, **options)
        assert torch.equal(exported.generate(**sources(), max_new_tokens=8, **options), expected)
    ids, targets = sources()["input_ids"][:1], decoder_input_ids[:1]
    with torch.no_grad():
        expected = model(ids, decoder_input_ids=targets).logits
    torch.testing.assert_close(exported(ids, decoder_input_ids=targets).logits, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(exported.generate(ids, max_new_tokens=8), model.generate(ids, max_new_tokens=8))


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
        export_onnx(MODELS["csan"](), tmp_path / "onnx")


def test_what_cannot_be_exported_is_said(tmp_path):
    model = MODELS["csan"]()
    with pytest.raises(KeyError, match="int4"):
        export_onnx(model, tmp_path / "onnx", precision="int4")
    with pytest.raises(ValueError, match=r"must be float32, got torch.bfloat16: call model.float\(\)"):
        export_onnx(model.bfloat16(), tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()
