# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""M2M100 and NLLB models as CSANs."""

import pytest
import torch
from transformers import (
    M2M100Config,
    M2M100ForConditionalGeneration,
    NllbTokenizer,
    pipeline,
)

import csan_hf_cli
from csan_hf import CsanForConditionalGeneration
from csan_hf.hub import convert_m2m100
from csan_hf.pipelines import translation_pipeline


def build(**overrides):
    torch.manual_seed(0)
    fields = {
        "vocab_size": 31,
        "d_model": 16,
        "encoder_layers": 2,
        "decoder_layers": 1,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 24,
        "max_position_embeddings": 20,
        "init_std": 0.3,
        **overrides,
    }
    model = M2M100ForConditionalGeneration(M2M100Config(**fields)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bias" in name or "layer_norm" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def batch(padding=1):
    """Two sources, the longer one beyond the table of positions."""
    torch.manual_seed(1)
    input_ids = torch.randint(4, 31, (2, 27))
    input_ids[1, 8:] = padding
    return {"input_ids": input_ids, "attention_mask": input_ids.ne(padding).long()}


@pytest.mark.parametrize(
    "overrides",
    [{}, {"scale_embedding": False, "activation_function": "gelu"}, {"d_model": 20, "pad_token_id": 3}],
)
def test_locality_off_computes_what_m2m100_computes(overrides, tmp_path):
    model = build(**overrides)
    csan = convert_m2m100(model)
    assert csan.num_parameters() == model.num_parameters()
    inputs = batch(model.config.pad_token_id)
    targets = torch.randint(4, 31, (2, 25))
    for found in (csan, None):
        if found is None:
            csan.save_pretrained(tmp_path / "csan")
            found = CsanForConditionalGeneration.from_pretrained(tmp_path / "csan")
        with torch.no_grad():
            expected = model(**inputs, decoder_input_ids=targets).logits
            actual = found(**inputs, decoder_input_ids=targets).logits
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    for beams in (1, 3):
        options = {"num_beams": beams, "max_new_tokens": 24, "forced_bos_token_id": 7}
        assert torch.equal(csan.generate(**inputs, **options), model.generate(**inputs, **options))
    static = csan.generate(**inputs, max_new_tokens=9, cache_implementation="static")
    assert torch.equal(static, model.generate(**inputs, max_new_tokens=9))


def test_locality_changes_the_result_and_no_parameter():
    model = build()
    csan = convert_m2m100(model, local_window=3, head_area=3, localness_layers=[0])
    assert csan.num_parameters() == model.num_parameters()
    targets = torch.randint(4, 31, (2, 5))
    with torch.no_grad():
        difference = (
            csan(**batch(), decoder_input_ids=targets).logits - model(**batch(), decoder_input_ids=targets).logits
        )
    assert difference.abs().max() > 1e-3


def test_script_takes_the_languages_along(tmp_path):
    """From an NLLB checkpoint to a CSAN that loads by its folder and translates between the same languages."""
    vocabulary = {piece: number for number, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *"▁abcdefghij"])}
    tokenizer = NllbTokenizer(vocab=vocabulary, merges=[], extra_special_tokens=["eng_Latn", "deu_Latn"])
    model = build(vocab_size=len(tokenizer))
    model.save_pretrained(tmp_path / "nllb")
    tokenizer.save_pretrained(tmp_path / "nllb")
    assert csan_hf_cli.main(["convert", str(tmp_path / "nllb"), str(tmp_path / "csan")]) == 0
    languages = {"src_lang": "deu_Latn", "tgt_lang": "eng_Latn", "max_new_tokens": 8, "device": "cpu"}
    expected = translation_pipeline(model, tokenizer=tokenizer, **languages)("ab cd")
    assert translation_pipeline(tmp_path / "csan", **languages)("ab cd") == expected
    # as it is without csan_hf: the pipeline that the checkpoint brings
    brought = pipeline("translation", model=str(tmp_path / "csan"), trust_remote_code=True, **languages)
    assert type(brought).__module__.startswith("transformers_modules")
    assert brought("ab cd") == expected


def test_from_a_folder(tmp_path):
    model = build()
    model.save_pretrained(tmp_path)
    csan = convert_m2m100(tmp_path, encoder_locality=[{"window": 3}, None])
    assert csan.config.local_layers("encoder") == [0]
    assert csan.config.decoder_start_token_id == 2
    assert torch.equal(csan.model.shared.weight, model.model.shared.weight)
