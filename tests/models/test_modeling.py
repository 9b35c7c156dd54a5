# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The CSAN models as transformers' users meet them: implementations, caches, embeddings, positions."""

from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import MarianConfig, MarianModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from csan_hf import CsanConfig, CsanForConditionalGeneration, CsanForSequenceClassification, CsanModel
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
LOCAL_DECODER = {"local_window": 5, "head_area": 3, "decoder_localness_layers": [0, 1]}


def tiny(**options: object) -> CsanForConditionalGeneration:
    return CsanForConditionalGeneration(CsanConfig(**{**SIZE, **options})).eval()


@pytest.mark.parametrize("options", [{"local_window": None, "head_area": 1}, {}, {"localness_window": "query"}])
@torch.no_grad()
def test_every_implementation_gives_the_same_logits(options: dict) -> None:
    model = tiny(**options)
    expected = model(**INPUTS).logits
    for implementation in ("eager", "blocked", "sdpa"):
        model.set_attn_implementation(implementation)
        torch.testing.assert_close(model(**INPUTS).logits, expected, rtol=1e-5, atol=1e-5)


def test_implementation_is_chosen_at_loading(tmp_path) -> None:
    tiny().save_pretrained(tmp_path)
    model = CsanForConditionalGeneration.from_pretrained(tmp_path, attn_implementation="blocked")
    assert model.config._attn_implementation == "blocked"


def test_local_layers_refuse_an_implementation_that_cannot_run_them() -> None:
    model = tiny()
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match=r"flash_attention_2.*cannot run CSAN's local layers"):
        model.model.encoder.layers[0].self_attn(torch.randn(1, 4, 32))


@torch.no_grad()
def test_attentions_are_distributions_over_real_positions() -> None:
    model = tiny(**LOCAL_DECODER)
    model.set_attn_implementation("eager")
    output = model(**INPUTS, output_attentions=True)
    assert len(output.encoder_attentions) == 3
    assert len(output.decoder_attentions) == len(output.cross_attentions) == 2
    for weights in output.encoder_attentions:
        assert weights.shape == (2, 4, 8, 8)
        torch.testing.assert_close(weights.sum(-1)[0], torch.ones(4, 8))
        assert not weights[1, :, :, 4:].any()
    assert not output.encoder_attentions[0][0, :, 0, 3:].any()  # a window of 5 reaches two tokens


@torch.no_grad()
def test_static_cache_equals_dynamic_with_a_local_decoder() -> None:
    model = tiny(**LOCAL_DECODER)
    options = {"attention_mask": MASK, "max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    expected = model.generate(SOURCE, **options)
    static = model.generate(SOURCE, cache_implementation="static", disable_compile=True, **options)
    assert torch.equal(static, expected)


@torch.no_grad()
def test_sinusoids_extend_past_their_table() -> None:
    short, long = tiny(max_position_embeddings=4), tiny(max_position_embeddings=64)
    short.load_state_dict(long.state_dict())
    assert torch.equal(short(**INPUTS).logits, long(**INPUTS).logits)


def test_gradient_checkpointing_changes_nothing() -> None:
    model = tiny(**LOCAL_DECODER, localness_window="query", dropout=0.0).train()
    model(**INPUTS).loss.backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    model.gradient_checkpointing_enable()
    model(**INPUTS).loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], msg=name)


def test_shared_embeddings_are_one_tensor_and_stored_once(tmp_path) -> None:
    model = tiny()
    embeddings = {
        model.model.shared.weight.data_ptr(),
        model.model.encoder.embed_tokens.weight.data_ptr(),
        model.model.decoder.embed_tokens.weight.data_ptr(),
        model.lm_head.weight.data_ptr(),
    }
    assert len(embeddings) == 1
    model.save_pretrained(tmp_path)
    stored = [name for name, tensor in load_file(tmp_path / "model.safetensors").items() if tensor.shape == (40, 32)]
    assert stored == ["model.shared.weight"]


@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_separate_vocabularies(tied: bool, tmp_path) -> None:
    model = tiny(decoder_vocab_size=55, share_encoder_decoder_embeddings=False, tie_word_embeddings=tied)
    assert model.model.encoder.embed_tokens.weight.shape == (40, 32)
    assert model.model.decoder.embed_tokens.weight.shape == (55, 32)
    same = model.lm_head.weight.data_ptr() == model.model.decoder.embed_tokens.weight.data_ptr()
    assert same == tied
    logits = model(**INPUTS).logits
    assert logits.shape[-1] == 55
    model.save_pretrained(tmp_path)
    loaded = CsanForConditionalGeneration.from_pretrained(tmp_path)
    assert torch.equal(loaded(**INPUTS).logits, logits)


@torch.no_grad()
def test_resizing_shared_and_separate_vocabularies() -> None:
    model = tiny()
    before = model(**INPUTS).logits
    model.resize_token_embeddings(47)
    after = model(**INPUTS).logits
    assert model.config.vocab_size == model.config.decoder_vocab_size == after.shape[-1] == 47
    torch.testing.assert_close(after[..., :40], before)

    model = tiny(decoder_vocab_size=55, share_encoder_decoder_embeddings=False)
    before = model(**INPUTS).logits
    model.resize_token_embeddings(47)
    model.resize_decoder_token_embeddings(60)
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (47, 60)
    torch.testing.assert_close(model(**INPUTS).logits[..., :55], before)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", [CsanModel, CsanForConditionalGeneration, CsanForSequenceClassification])
@torch.no_grad()
def test_a_resized_model_is_saved_and_loaded(kind: type, shared: bool, tmp_path) -> None:
    model: Any = kind(CsanConfig(**SIZE, share_encoder_decoder_embeddings=shared)).eval()
    model.resize_token_embeddings(47)
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (47, 47 if shared else 40)
    model.save_pretrained(tmp_path)
    loaded, report = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    inputs = {"input_ids": SOURCE + 6, "attention_mask": MASK}
    if kind is not CsanForSequenceClassification:
        inputs["decoder_input_ids"] = SOURCE
    assert torch.equal(loaded(**inputs)[0], model(**inputs)[0])


@torch.no_grad()
def test_base_model_derives_decoder_inputs_as_bart_does() -> None:
    model = CsanModel(CsanConfig(**SIZE)).eval()
    assert model(input_ids=SOURCE).last_hidden_state.shape == (2, 8, 32)
    separate = CsanModel(CsanConfig(**SIZE, decoder_vocab_size=50, share_encoder_decoder_embeddings=False))
    with pytest.raises(ValueError, match="decoder_input_ids"):
        separate(input_ids=SOURCE)


def test_exactly_one_kind_of_input() -> None:
    model = tiny()
    with pytest.raises(ValueError, match=r"input_ids.*inputs_embeds"):
        model(attention_mask=MASK, labels=TARGET)
    with pytest.raises(ValueError, match=r"Local layers take a padding mask `attention_mask`.*4D"):
        model(input_ids=SOURCE, attention_mask=torch.ones(2, 1, 8, 8), labels=TARGET)


@pytest.mark.parametrize("low", [-10000, -1, 2])
def test_a_mask_that_is_to_be_added_is_refused(low: int) -> None:
    """Of integers as of floats: 0 would mean a real token there, and padding here."""
    with pytest.raises(ValueError, match=rf"`attention_mask` must hold 1 \(a real token\) and 0.*got {low}"):
        tiny()(**INPUTS | {"attention_mask": (1 - MASK) * low})


def test_the_area_is_limited_by_the_heads_of_local_layers_alone() -> None:
    plain = {"local_window": 5, "head_area": 5, "d_model": 32}
    CsanConfig(**plain, encoder_attention_heads=4, decoder_attention_heads=2)
    CsanConfig(
        **plain,
        encoder_attention_heads=2,
        decoder_attention_heads=4,
        localness_layers=[],
        decoder_localness_layers=[1],
    )
    for fields in ({"encoder_attention_heads": 2}, {"decoder_attention_heads": 2, "decoder_localness_layers": [1]}):
        with pytest.raises(ValueError, match=r"`head_area` must be at most 3 \(2H - 1 for H = 2 heads\), got 5"):
            CsanConfig(**plain, **fields)


@torch.no_grad()
def test_full_attention_of_a_query_that_sees_nothing_is_zero() -> None:
    """Under eager as under sdpa and in local layers."""
    torch.manual_seed(0)
    mask = MASK.clone()
    mask[1] = 0
    states = torch.randn(2, 8, 32)
    model = tiny(local_window=None, head_area=1)
    attention = model.model.encoder.layers[0].self_attn
    attention.out_proj = torch.nn.Identity()
    outputs = {}
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        masks = model.model.encoder._masks(states, mask)
        outputs[implementation], _ = attention(states, attention_mask=masks)
        assert not outputs[implementation][1].any(), implementation
    torch.testing.assert_close(outputs["eager"], outputs["sdpa"])


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
