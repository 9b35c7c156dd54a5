# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The CSAN models as transformers' users meet them: implementations, caches, embeddings, positions."""

from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import MarianConfig, MarianModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from csan_hf import (
    CsanConfig,
    CsanForConditionalGeneration,
    CsanForSequenceClassification,
    CsanForTokenClassification,
    CsanModel,
)
from csan_hf.models.csan_attention import eager_attention_forward, make_decoder_cache

SIZE = {
    "vocab_size": 40,
    "d_model": 32,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "init_gain": 1.0,
}
SOURCE = torch.tensor([[5, 9, 7, 3, 12, 30, 8, 1], [4, 22, 6, 1, 0, 0, 0, 0]])
MASK = (SOURCE != 0).long()
TARGET = torch.tensor([[7, 8, 9, 10, 11, 1], [12, 13, 1, -100, -100, -100]])
INPUTS = {"input_ids": SOURCE, "attention_mask": MASK, "labels": TARGET}


def tiny(**options: object) -> CsanForConditionalGeneration:
    return CsanForConditionalGeneration(CsanConfig(**{**SIZE, **options})).eval()


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", [CsanModel, CsanForSequenceClassification, CsanForTokenClassification])
@torch.no_grad()
def test_a_resized_model_is_saved_and_loaded(kind: type, shared: bool, tmp_path) -> None:
    model: Any = kind(CsanConfig(**SIZE, share_encoder_decoder_embeddings=shared)).eval()
    model.resize_token_embeddings(47)
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (47, 47 if shared else 40)
    model.save_pretrained(tmp_path)
    tables = [name for name, tensor in load_file(tmp_path / "model.safetensors").items() if len(tensor) == 47]
    assert len(tables) == 1, "stored once"
    loaded, report = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    inputs = {"input_ids": SOURCE + 6, "attention_mask": MASK}
    if kind is CsanModel:
        inputs["decoder_input_ids"] = SOURCE
    assert torch.equal(loaded(**inputs)[0], model(**inputs)[0])


@torch.no_grad()
def test_base_model_derives_decoder_inputs_as_bart_does() -> None:
    model = CsanModel(CsanConfig(**SIZE)).eval()
    assert model(input_ids=SOURCE).last_hidden_state.shape == (2, 8, 32)
    separate = CsanModel(CsanConfig(**SIZE, decoder_vocab_size=50, share_encoder_decoder_embeddings=False))
    with pytest.raises(ValueError, match="decoder_input_ids"):
        separate(input_ids=SOURCE)


@torch.no_grad()
def test_a_ready_made_mask_is_for_full_attention_alone() -> None:
    allowed = MASK[:, None, None, :].bool().expand(2, 1, 8, 8)
    plain = tiny(local_window=None, head_area=1)
    expected = plain(**INPUTS).logits
    source = plain.get_encoder()(SOURCE, attention_mask=allowed)
    torch.testing.assert_close(plain(**INPUTS | {"encoder_outputs": source}).logits, expected)
    with pytest.raises(ValueError, match=r"`attention_mask` must have the shape \[batch, length\] = \[2, 8\]"):
        tiny()(input_ids=SOURCE, attention_mask=allowed, labels=TARGET)


@torch.no_grad()
def test_full_attention_of_a_query_that_sees_nothing_is_zero() -> None:
    """Under eager as under sdpa and in local layers."""
    torch.manual_seed(0)
    mask = MASK.clone()
    mask[1] = 0
    states = torch.randn(2, 8, 32)
    model = tiny(local_window=None, head_area=1)
    outputs: list[torch.Tensor] = []
    projection = model.model.encoder.layers[0].self_attn.out_proj
    projection.register_forward_pre_hook(lambda module, inputs: outputs.append(inputs[0]))
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        model.get_encoder()(inputs_embeds=states, attention_mask=mask)
        assert not outputs[-1][1].any(), implementation
    torch.testing.assert_close(*outputs)


@pytest.mark.parametrize("lowest", [torch.finfo(torch.float32).min, -torch.inf])
def test_gradients_of_a_query_that_sees_nothing_are_finite(lowest: float) -> None:
    tensors = [torch.randn(1, 2, 3, 4, requires_grad=True) for _ in range(3)]
    mask = torch.tensor([[0, lowest, 0], [lowest] * 3, [0, 0, lowest]])[None, None]
    output, weights = eager_attention_forward(torch.nn.Identity(), *tensors, mask, scaling=0.5)
    assert not output[:, 1].any()
    torch.testing.assert_close(weights.sum(-1), torch.tensor([1.0, 0, 1]).expand(1, 2, 3))
    output.square().sum().backward()
    assert all(tensor.grad.isfinite().all() for tensor in tensors)


def test_blocked_is_an_implementation_of_csan_alone() -> None:
    assert "blocked" not in ALL_ATTENTION_FUNCTIONS.valid_keys()
    sizes = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
    tokens = {"vocab_size": 9, "pad_token_id": 0, "decoder_start_token_id": 0}
    marian = MarianModel(MarianConfig(**sizes, **tokens, decoder_attention_heads=2))
    with pytest.raises(ValueError, match="blocked"):
        marian.set_attn_implementation("blocked")


def test_beams_are_reordered_without_waiting_for_the_device() -> None:
    """On `meta`, where a value that is read is an error."""
    cache = make_decoder_cache(CsanConfig(**SIZE), num_beams=2)
    keys = torch.zeros(4, 4, 6, 8, device="meta")
    cache.cross_attention_cache.update(keys, keys, 0)
    cache.reorder_cache(torch.zeros(4, dtype=torch.long, device="meta"))
    assert cache.cross_attention_cache.layers[0].keys.shape == keys.shape


@pytest.mark.parametrize("drop", ["encoder_layerdrop", "decoder_layerdrop"])
def test_layers_are_dropped_in_one_graph(drop: str) -> None:
    model = tiny(**{drop: 1.0}, dropout=0.0).train()
    expected = model(**INPUTS).logits
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(**INPUTS).logits, expected)
    setattr(model.config, drop, 0.5)
    torch.manual_seed(0)
    found = {round(compiled(**INPUTS).loss.item(), 5) for _ in range(12)}
    assert 2 <= len(found) <= 8, "each of 2 or 3 layers is there or not"
