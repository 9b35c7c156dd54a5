"""Locality methods through the attention module against the loop oracles: outputs, gradients, caches, padding."""

import pytest
import torch
from reference import locality_methods as oracle
from reference.tiny_csan import PLAIN, padded_sources, tiny_model

from csan_hf import CsanConfig
from csan_hf.csan.attention import AttentionMasks, CsanAttention, first_real_token

B, T, H, D = 2, 6, 3, 4
LENGTHS = (6, 4)
SPECIFICATIONS = {
    "relative positions": {"relative_positions": 2},
    "relative positions of each head": {"relative_positions": {"max_distance": 2, "per_head": True}},
    "window and relative positions": {"window": 3, "relative_positions": 3},
    "area and relative positions": {"window": 5, "head_area": 3, "relative_positions": 2},
    "gaussian and relative positions": {"gaussian": "query", "relative_positions": 2},
    "all of them": {"window": 5, "head_area": 3, "gaussian": "query", "relative_positions": 1},
}
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


def oracle_methods(attention):
    methods = []
    for name, module in attention.locality_modules().items():
        if name == "localness":
            weight = module.query_proj.weight
            predictors = (module.center_proj.weight, module.window_proj.weight)
            center, width = (oracle.Predictor(weight, predictor) for predictor in predictors)
            methods.append(oracle.Gaussian(center=center, width=width, minimum_width=0.1))
        else:
            clip = (module.keys.shape[-2] - 1) // 2
            methods.append(oracle.RelativePositions(module.keys, module.values, clip))
    return methods


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


@pytest.mark.parametrize("implementation", ["eager", "blocked", "sdpa"])
@pytest.mark.parametrize("part", ["encoder", "decoder"])
@pytest.mark.parametrize("specification", SPECIFICATIONS.values(), ids=SPECIFICATIONS)
def test_equals_the_oracle(specification, part, implementation):
    """Real queries' outputs, and the gradients of states and parameters, whatever stands at padding."""
    if implementation == "blocked" and "window" not in specification:
        specification = {**specification, "window": 2 * T + 1}
    attention = make_attention(specification, part, implementation)
    for side in PADDINGS:
        padding = padding_of(side)
        states = torch.randn(B, T, H * D, generator=torch.Generator().manual_seed(2), requires_grad=True)
        real = torch.ones(B, T, dtype=torch.bool) if padding is None else padding
        masks = AttentionMasks(None, padding, first_real_token(padding))
        outputs = attention(states, attention_mask=masks)[0][real], run_oracle(attention, states, padding)[real]
        torch.testing.assert_close(*outputs, rtol=0, atol=1e-5)
        leaves = [states, *attention.parameters()]
        upstream = torch.randn(outputs[0].shape, generator=torch.Generator().manual_seed(3))
        found, expected = (torch.autograd.grad((output * upstream).sum(), leaves) for output in outputs)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


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


def test_parameters_of_relative_positions():
    """+0.1M for base in three layers with tables of each head (NAACL 2019, Table 1; Shaw et al., section 4.1)."""

    def count(config):
        with torch.device("meta"):
            layers = [CsanAttention(config, "encoder", index) for index in range(config.encoder_layers)]
        return sum(parameter.numel() for layer in layers for parameter in layer.parameters())

    plain = count(CsanConfig.base(local_window=None, head_area=1))
    added = count(CsanConfig.preset("rel_pos")) - plain
    assert added == 3 * 2 * 8 * 33 * 64
    assert round(added / 1e6, 1) == 0.1
    assert round((count(CsanConfig.preset("local_soft")) - plain) / 1e6, 1) == 0.8
    for name in ("csan_1d", "csan_2d"):
        assert count(CsanConfig.preset(name)) == plain
