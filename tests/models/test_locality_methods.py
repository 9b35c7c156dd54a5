# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Locality methods through the attention module against the loop oracles: outputs, gradients, caches, padding."""

import pytest
import torch
from reference import locality_methods as oracle
from tiny import PLAIN, padded_sources
from tiny import csan as tiny_model

from csan_hf import CsanConfig
from csan_hf.models.csan_attention import AttentionMasks, CsanAttention, first_real_token

B, T, H, D = 2, 6, 4, 3
LENGTHS = (6, 4)
SPECIFICATIONS = {
    "relative positions": {"relative_positions": 2},
    "relative positions of each head": {"relative_positions": {"max_distance": 2, "per_head": True}},
    "window and relative positions": {"window": 3, "relative_positions": 3},
    "area and relative positions": {"window": 5, "head_area": 3, "relative_positions": 2},
    "gaussian and relative positions": {"gaussian": "query", "relative_positions": 2},
    "all of them": {"window": 5, "head_area": 3, "gaussian": "query", "relative_positions": 1},
    "neighbor": {"neighbor": True},
    "neighbor in an area": {"neighbor": True, "window": 5, "head_area": 3},
    "local hard": {"local_hard": 3.0},
    "local hard, cut off": {"local_hard": {"width": 1.5, "cut_off": True}, "relative_positions": 2},
}
ENCODER_ALONE = {
    "both directions": {"bi_direct": True},
    "both directions in a window": {"bi_direct": True, "window": 3, "relative_positions": 2},
    "both directions in an area": {"bi_direct": True, "window": 5, "head_area": 3, "neighbor": True},
}
CASES = [(name, part) for name in SPECIFICATIONS for part in ("encoder", "decoder")]
CASES += [(name, "encoder") for name in ENCODER_ALONE]
CASES += [("local hard", "cross")]
PADDINGS = ("none", "right", "left")


def make_attention(specification, part, implementation):
    config = CsanConfig(
        d_model=H * D,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=H,
        decoder_attention_heads=H,
        **{f"{part}_locality": [specification]},
    )
    config._attn_implementation = implementation
    attention = CsanAttention(config, part).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return attention


def padding_of(side):
    if side == "none":
        return None
    padding = torch.arange(T) < torch.tensor(LENGTHS)[:, None]
    return padding if side == "right" else padding.flip(1)


def oracle_method(method, modules):
    """The oracle's method with the same settings and parameters; window and area are arguments of the oracle."""
    if method.key == "bi_direct":
        return oracle.BiDirectional()
    if method.key == "relative_positions":
        tables = modules["relative_positions"]
        return oracle.RelativePositions(tables.keys, tables.values, method.max_distance)
    if method.key == "gaussian":
        module = modules["localness"]
        predictors = (module.center_proj.weight, module.window_proj.weight)
        center, width = (oracle.Predictor(module.query_proj.weight, predictor) for predictor in predictors)
        return oracle.Gaussian(center=center, width=width, minimum_width=0.1)
    predictor = oracle.Predictor(modules[method.key].query_proj.weight, modules[method.key].head_proj.weight)
    if method.key == "neighbor":
        return oracle.Gaussian(width=predictor, minimum_width=0.1)
    return oracle.Gaussian(center=predictor, fixed_width=method.width, cut_off=method.cut_off)


def oracle_methods(attention):
    methods = [method for method in attention.locality.methods if method.term is not None]
    return [oracle_method(method, attention.locality_modules()) for method in methods]


def run_oracle(attention, states, padding):
    heads = [
        projection(states).view(B, T, H, D).transpose(1, 2)
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    ]
    area = attention.locality.area
    output = oracle.local_attention(
        *heads,
        oracle_methods(attention),
        window=area.window,
        head_area=area.head_area,
        key_padding_mask=padding,
        causal=area.causal,
    )
    return attention.out_proj(output.float().transpose(1, 2).flatten(2))


def implementations_of(specification, part):
    """Who can run it: blocks follow a window, which cross-attention has none of; FlexAttention gives no weights."""
    blocked = () if part == "cross" else ("blocked",)
    flex = () if "relative_positions" in specification else ("flex_attention",)
    return ("eager", "sdpa", *blocked, *flex)


@pytest.mark.parametrize(("name", "part"), CASES)
@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile.*")
def test_equals_the_oracle(name, part):
    """Real queries' outputs, and the gradients of states and parameters, whatever stands at padding."""
    specification = {**SPECIFICATIONS, **ENCODER_ALONE}[name]
    for side in PADDINGS:
        padding = padding_of(side)
        real = torch.ones(B, T, dtype=torch.bool) if padding is None else padding
        masks = AttentionMasks(None, padding, first_real_token(padding))
        states = torch.randn(B, T, H * D, generator=torch.Generator().manual_seed(2), requires_grad=True)
        upstream = torch.randn(int(real.sum()), H * D, generator=torch.Generator().manual_seed(3))

        def gradients(output, attention, upstream=upstream, states=states):
            return torch.autograd.grad((output * upstream).sum(), [states, *attention.parameters()])

        reference = make_attention(specification, part, "eager")
        expected = run_oracle(reference, states, padding)[real]
        expected_gradients = gradients(expected, reference)
        for implementation in implementations_of(specification, part):
            where = f"{implementation}, padding {side}: "
            window = {"window": 2 * T + 1} if implementation == "blocked" else {}  # as good as none
            attention = make_attention({**window, **specification}, part, implementation)
            with torch.set_grad_enabled(implementation != "flex_attention"):  # which has no backward on CPU
                sources = states if part == "cross" else None
                output = attention(states, key_value_states=sources, attention_mask=masks)[0][real]
            torch.testing.assert_close(output, expected, rtol=0, atol=1e-5, msg=lambda text, at=where: at + text)
            if output.requires_grad:
                found = gradients(output, attention)
                for one, other in zip(found, expected_gradients, strict=True):
                    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, msg=lambda text, at=where: at + text)


@pytest.mark.parametrize("specification", SPECIFICATIONS.values(), ids=SPECIFICATIONS)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@torch.no_grad()
def test_decoding_from_the_cache_equals_the_full_forward(specification, cache):
    """Greedy steps give the logits that the whole target gives at once."""
    options = {**PLAIN, "decoder_attention_heads": 4, "decoder_locality": [specification, None]}
    model = tiny_model(**options)
    sources = padded_sources((6, 3))
    settings = {"min_new_tokens": 9, "max_new_tokens": 9, "num_beams": 1}
    generated = model.generate(
        **sources,
        **settings,
        cache_implementation=None if cache == "dynamic" else "static",
        disable_compile=True,
        output_logits=True,
        return_dict_in_generate=True,
    )
    whole = model(**sources, decoder_input_ids=generated.sequences[:, :-1], use_cache=False).logits
    torch.testing.assert_close(torch.stack(generated.logits, dim=1), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("part", ["encoder", "decoder"])
@torch.no_grad()
def test_padding_on_either_side_gives_the_same(part):
    """Positions are ranks among the real tokens, with sinusoids out of the way (those count places)."""
    specification = SPECIFICATIONS["all of them"]
    model = tiny_model(**{**PLAIN, f"{part}_locality": [specification, {"gaussian": "layer"}]})
    module = model.model.encoder if part == "encoder" else model.model.decoder
    module.embed_positions.weight.zero_()
    ids = padded_sources((6, 4))["input_ids"]
    left = ids.clone()
    left[1] = ids[1].roll(2)
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    right_states = module(ids, attention_mask=mask).last_hidden_state
    left_states = module(left, attention_mask=torch.tensor([[1] * 6, [0] * 2 + [1] * 4])).last_hidden_state
    torch.testing.assert_close(left_states[0], right_states[0])
    torch.testing.assert_close(left_states[1, 2:], right_states[1, :4])
