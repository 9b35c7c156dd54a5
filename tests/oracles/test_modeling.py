# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The CSAN models as transformers' users meet them: implementations, caches, embeddings, positions,
dropout.
"""

import pytest
import torch
import torch.nn.functional as F
from reference.dispatch import Operations
from tiny import (
    CSAN_SIZES,
    ENCODER,
    LOCALITIES,
    PLAIN,
    STRATEGIES,
    every_implementation,
    labels_of,
    padded_sources,
)
from tiny import csan as tiny_model
from torch.testing import assert_close

from csan_hf import (
    CsanConfig,
    CsanModel,
)
from csan_hf.models.csan_attention import make_decoder_cache
from csan_hf.models.layers import SinusoidalPositionalEmbedding, drop

SIZE = {**CSAN_SIZES, "vocab_size": 40, "init_gain": 1.0}
SOURCE = torch.tensor([[5, 9, 7, 3, 12, 30, 8, 1], [4, 22, 6, 1, 0, 0, 0, 0]])
MASK = (SOURCE != 0).long()
TARGET = torch.tensor([[7, 8, 9, 10, 11, 1], [12, 13, 1, -100, -100, -100]])
INPUTS = {"input_ids": SOURCE, "attention_mask": MASK, "labels": TARGET}


@torch.no_grad()
def test_base_model_derives_decoder_inputs_as_bart_does():
    model = CsanModel(CsanConfig(**SIZE)).eval()
    assert model(input_ids=SOURCE).last_hidden_state.shape == (2, 8, 32)
    separate = CsanModel(
        CsanConfig(**SIZE, decoder_vocab_size=50, share_encoder_decoder_embeddings=False)
    )
    with pytest.raises(ValueError, match="decoder_input_ids"):
        separate(input_ids=SOURCE)


@torch.no_grad()
def test_full_attention_of_a_query_that_sees_nothing_is_zero():
    """Under eager as under sdpa and in local layers."""
    mask = MASK.clone()
    mask[1] = 0
    states = torch.randn(2, 8, 32)
    model = tiny_model(**PLAIN)
    outputs: list[torch.Tensor] = []
    projection = model.model.encoder.layers[0].self_attn.out_proj
    projection.register_forward_pre_hook(lambda module, inputs: outputs.append(inputs[0]))
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        model.get_encoder()(inputs_embeds=states, attention_mask=mask)
        assert not outputs[-1][1].any(), implementation
    assert_close(*outputs)


def test_beams_are_reordered_without_waiting_for_the_device():
    """On `meta`, where a value that is read is an error."""
    cache = make_decoder_cache(CsanModel(CsanConfig(**SIZE)).decoder.layers, num_beams=2)
    keys = torch.zeros(4, 4, 6, 8, device="meta")
    cache.cross_attention_cache.update(keys, keys, 0)
    cache.reorder_cache(torch.zeros(4, dtype=torch.long, device="meta"))
    assert cache.cross_attention_cache.layers[0].keys.shape == keys.shape


def test_layers_are_dropped_in_training():
    model = tiny_model(encoder_layerdrop=1.0, decoder_layerdrop=1.0)
    dropped = model.train()(**INPUTS).logits
    model.eval()
    assert not torch.allclose(model(**INPUTS).logits, dropped)
    for stack in (model.model.encoder, model.model.decoder):
        stack.layers = torch.nn.ModuleList()
    assert torch.equal(model(**INPUTS).logits, dropped)


@pytest.mark.parametrize(
    "locality", [PLAIN, {**ENCODER, "local_window": 3, "head_area": 3}], ids=["full", "local"]
)
def test_dtypes_of_training_and_of_inference(locality, monkeypatch):
    """On a CPU attention trains in float32 under autocast: its fused backward pass is slow in
    bfloat16.
    """
    model = tiny_model(**locality).train()
    seen = set()
    fused = F.scaled_dot_product_attention

    def attend(query, *args, **kwargs):
        seen.add(query.dtype)
        assert not torch.is_autocast_enabled("cpu") or query.dtype == torch.bfloat16
        return fused(query, *args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", attend)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(**INPUTS).loss
        loss.backward()
        assert seen == {torch.float32}
        seen.clear()
        with torch.no_grad():
            assert model(**INPUTS).loss.item() == pytest.approx(loss.item(), abs=0.02)
    assert seen == {torch.bfloat16}


@every_implementation
@torch.no_grad()
def test_without_positions_order_is_what_locality_says(implementation):
    """Full attention sees a set of tokens; windows and relative positions see neighbours, wherever
    these stand.
    """
    ids = torch.randperm(20)[None] + 2
    for name, kept in (
        ("no positions", torch.randperm(20)),
        ("relative positions alone", torch.arange(3, 18)),
    ):
        encoder = tiny_model(attn_implementation=implementation, **LOCALITIES[name]).get_encoder()
        states = encoder(ids).last_hidden_state
        states_of_kept = encoder(ids[:, kept]).last_hidden_state
        inside = (
            slice(None) if name == "no positions" else slice(4, -4)
        )  # two layers of windows of 5
        assert_close(states_of_kept[:, inside], states[:, kept][:, inside], rtol=0, atol=1e-5)
    assert (encoder(ids.flip(1)).last_hidden_state.flip(1) - states).abs().max() > 0.1, (
        "order counts"
    )


@pytest.mark.parametrize(
    "locality", ["plain", "encoder area", *(f"everything, {strategy}" for strategy in STRATEGIES)]
)
def test_gradients_reach_the_attention_weights(locality):
    """As with full attention: the output is made from the weights that are returned, padding or
    not.
    """
    model = tiny_model(attn_implementation="eager", **LOCALITIES[locality])
    batch = {**padded_sources((9, 4, 13, 1)), "labels": labels_of((7, 12, 3, 1))}
    outputs = model(**batch, output_attentions=True)
    layers = [*outputs.encoder_attentions, *outputs.decoder_attentions, *outputs.cross_attentions]
    for weights, gradient in zip(layers, torch.autograd.grad(outputs.loss, layers), strict=True):
        assert gradient.shape == weights.shape
        assert gradient.any()


# Sinusoids


def test_a_config_that_asks_for_a_million_positions_gets_those_that_are_used():
    positions = SinusoidalPositionalEmbedding(1_000_000, 4)
    assert positions.weight.shape == (16_384, 4)
    everything = positions.create_weight(20_000)
    for length, offset in ((3, 16_381), (3, 16_382), (5, 19_995), (16_384, 0)):
        assert torch.equal(positions(length, offset), everything[offset : offset + length])
    assert positions(1, 999_999).shape == (1, 4)


@pytest.mark.parametrize("kind", ["marian", "m2m_100"])
@pytest.mark.parametrize(("length", "offset"), [(6, 0), (1, 12), (5, 30)])
def test_sinusoids_start_at_the_first_real_token(length, offset, kind):
    """Wherever the offset is known, on the host or on the device alone."""
    positions = SinusoidalPositionalEmbedding(20, 8, kind, pad_token_id=1)
    first = torch.tensor([0, 2, 5])
    places = torch.arange(offset, offset + length)
    table = positions.create_weight(40)
    for start in (offset, torch.tensor(offset)):
        assert torch.equal(positions(length, start), table[places])
        assert torch.equal(
            positions(length, start, first), table[(places - first[:, None]).clamp(min=0)]
        )


@pytest.mark.parametrize("offset", [3, 19, 40])
def test_sinusoids_are_computed_where_the_model_is(offset):
    """In the table and past it: no step of generation waits for the host."""
    positions = SinusoidalPositionalEmbedding(20, 8).to("meta")
    with Operations(device="meta"):
        assert positions(3, offset).device.type == "meta"


# Dropout drops as many elements as it should, independently, and as the seed says

COUNT = 400_000


def kept_of(probability, seed=0, shape=(COUNT,)):
    torch.manual_seed(seed)
    return drop(torch.ones(shape, dtype=torch.float64), probability)


@pytest.mark.parametrize("probability", [0.001, 0.1, 0.5, 0.9])
def test_as_many_are_dropped_as_should_be(probability):
    output = kept_of(probability)
    deviation = (probability * (1 - probability) / COUNT) ** 0.5
    assert abs((output == 0).double().mean() - probability) < 4 * deviation
    rounded = round(probability * 65536) / 65536
    assert torch.equal(
        output[output != 0].unique(), torch.tensor([1 / (1 - rounded)], dtype=torch.float64)
    )


def test_elements_are_dropped_independently():
    kept = kept_of(0.5).bool()
    for distance in (1, 2, 3, 4, 5, 64):  # four share a draw
        together = (kept[distance:] == kept[:-distance]).double().mean()
        assert abs(together - 0.5) < 4 * 0.5 / COUNT**0.5, distance


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_what_is_dropped_has_no_gradient(dtype):
    states = torch.rand(100, 90, dtype=dtype).add_(1).requires_grad_()
    output = drop(states[:, 1:], 0.25)  # not contiguous, and no multiple of four
    assert output.dtype == dtype
    output.sum().backward()
    expected = (output != 0).to(dtype) / 0.75
    assert_close(states.grad[:, 1:], expected)
    assert_close(output, states[:, 1:] * expected)
    assert states.grad[:, 0].eq(0).all()


def test_nothing_and_everything():
    states = torch.rand(COUNT)
    assert drop(states, 0.0) is states
    assert drop(states, 0.5, training=False) is states
    assert drop(states, 1.0).eq(0).all()
    assert drop(states, 1e-9).eq(states).all()


def test_where_it_is_torchs():
    """In compiled programs, under torch.func, and where there are too few elements to gain."""
    states = torch.rand(3, COUNT)
    dropped = torch.func.vmap(drop, in_dims=(0, None), randomness="different")(states, 0.5)
    assert not torch.equal(dropped[0] == 0, dropped[1] == 0)
    compiled = torch.compile(drop, backend="eager", fullgraph=True)
    for function, inputs in ((compiled, states), (drop, states[0, :100])):
        torch.manual_seed(0)
        output = function(inputs, 0.5)
        torch.manual_seed(0)
        assert torch.equal(output, F.dropout(inputs, 0.5))
