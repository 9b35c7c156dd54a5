# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Locality methods through the attention module against the loop oracles: outputs, gradients,
caches, padding.
"""

from itertools import product

import pytest
import torch
from reference import locality_methods as oracle
from reference.dispatch import Operations
from reference.local_attention import gaussian_energy
from reference.locality_block import block_self_attention
from reference.locality_cnn import convolutions
from tiny import (
    PLAIN,
    SPECIFICATIONS,
    STRATEGIES,
    VOCABULARY,
    decode_in_steps,
    mask_of,
    padded_sources,
    transformer_sizes,
)
from tiny import csan as tiny_model
from torch.testing import assert_close
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.models.t5.modeling_t5 import T5Attention

from csan_hf import CsanConfig
from csan_hf.models import gaussian
from csan_hf.models.attention_call import AttentionCall, KeyArea
from csan_hf.models.backend_dense import DenseCells
from csan_hf.models.csan_attention import AttentionMasks, CsanAttention
from csan_hf.models.distances import RelativeBiasTerm
from csan_hf.models.gaussian import MINIMUM_WINDOW, GaussianTerm, raise_to_floor

B = 2
T = 7
H = 4
D = 3
LENGTHS = (7, 5)  # the padding is no whole number of blocks
GAUSSIANS = {f"gaussian, {width}": {"gaussian": {"width": width}} for width in STRATEGIES}
GAUSSIANS["gaussian, fixed"]["gaussian"]["size"] = 2.5
ENCODER_ALONE = {
    "both directions": {"bi_direct": True},
    "both directions in a window": {"bi_direct": True, "window": 3, "relative_positions": 2},
    "both directions in an area": {
        "bi_direct": True,
        "window": 5,
        "head_area": 3,
        "neighbor": True,
    },
}
CASES = [*product((*SPECIFICATIONS, *GAUSSIANS), ("encoder", "decoder"))]
CASES += [(name, "encoder") for name in ENCODER_ALONE]
CROSS_ALONE = {
    "moving gaussian": {"moving_gaussian": 3.0},
    "self-correcting gaussian": {"moving_gaussian": {"width": 3.0, "gain": 0.4}},
}
CASES += [(name, "cross") for name in ("local hard", *GAUSSIANS, *CROSS_ALONE)]
PADDINGS = ("none", "right", "left")
# Without padding, by the first row of padding on the right
PADDED = PADDINGS[1:]


def make_attention(specification, part="encoder", implementation="eager", **options):
    sizes = transformer_sizes(H * D, layers=1, heads=H, ffn=1)
    config = CsanConfig(**sizes, **{f"{part}_locality": [specification], **options})
    config._attn_implementation = implementation
    attention = CsanAttention(config, part).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in attention.named_parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
            if name.endswith("head_window"):
                parameter.sub_(2.5)  # about four tokens
    return attention


def sentences(side):
    """States [B, T, d], the padding mask and which tokens are real."""
    states = torch.randn(
        B, T, H * D, generator=torch.Generator().manual_seed(2), requires_grad=True
    )
    real = mask_of(LENGTHS).bool()
    if side == "none":
        return states, None, torch.ones_like(real)
    padding = real if side == "right" else real.flip(1)
    return states, padding, padding


def gradients(output, states, parameters):
    """Of a weighted sum of real tokens' outputs; zero for what the output does not depend on."""
    upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(3))
    return torch.autograd.grad(
        (output * upstream).sum(), [states, *parameters], materialize_grads=True
    )


def oracle_method(method, modules):
    """The oracle's method with the same settings and parameters; window and area are arguments of
    the oracle.
    """
    if method.key == "bi_direct":
        return oracle.BiDirectional()
    if method.key == "relative_positions":
        tables = modules["relative_positions"]
        return oracle.RelativePositions(tables.keys, tables.values, method.max_distance)
    if method.key == "gaussian":
        module = modules["localness"]
        width = None if method.width == "fixed" else getattr(module, "head_window", None)
        if method.width in ("query", "layer"):
            projection = module.query_proj if method.width == "query" else module.key_proj
            width = oracle.Predictor(
                projection.weight, module.window_proj.weight, of_keys=method.width == "layer"
            )
        center = oracle.Predictor(module.query_proj.weight, module.center_proj.weight)
        return oracle.Gaussian(center, width, method.size, minimum_width=0.1)
    if method.key == "relative_bias":
        return oracle.RelativeBias(modules["relative_bias"].weight, method.max_distance)
    if method.key == "moving_gaussian":
        module = modules["moving_gaussian"]
        steps = oracle.Predictor(module.query_proj.weight, module.step_proj.weight)
        gain = getattr(module, "gain_logit", None)
        return oracle.MovingGaussian(steps, module.step_proj.bias, module.log_width, gain)
    predictor = oracle.Predictor(
        modules[method.key].query_proj.weight, modules[method.key].head_proj.weight
    )
    if method.key == "neighbor":
        return oracle.Gaussian(width=predictor, minimum_width=0.1)
    return oracle.Gaussian(center=predictor, fixed_width=method.width, cut_off=method.cut_off)


def run_oracle(attention, queries, states, padding):
    projections = (
        (attention.q_proj, queries),
        (attention.k_proj, states),
        (attention.v_proj, states),
    )
    heads = [
        projection(inputs).unflatten(2, (H, D)).transpose(1, 2)
        for projection, inputs in projections
    ]
    methods = [method for method in attention.locality.methods if method.term is not None]
    area = attention.locality.area
    output = oracle.local_attention(
        *heads,
        [oracle_method(method, dict(attention.named_children())) for method in methods],
        window=area.window,
        head_area=area.head_area,
        key_padding_mask=padding,
        causal=area.causal,
        cross=queries is not states,
    )
    return attention.out_proj(output.float().transpose(1, 2).flatten(2))


def implementations_of(specification, part):
    """Who can run it: blocks follow a window, which cross-attention has none of; FlexAttention
    gives no weights.
    """
    blocked = () if part == "cross" else ("blocked",)
    flex = () if "relative_positions" in specification else ("flex_attention",)
    return ("eager", "sdpa", *blocked, *flex)


@pytest.mark.parametrize(("name", "part"), CASES)
@pytest.mark.usefixtures("flex_without_compiler")
def test_equals_the_oracle(name, part):
    """Real queries' outputs, and the gradients of states and parameters, whatever stands at
    padding.
    """
    specification = {**SPECIFICATIONS, **GAUSSIANS, **ENCODER_ALONE, **CROSS_ALONE}[name]
    for side in PADDED:
        states, padding, real = sentences(side)
        masks = AttentionMasks(None, padding, padding.int().argmax(dim=-1))
        queries = states[:, 2:6] if part == "cross" else states
        real = torch.ones(B, 4, dtype=torch.bool) if part == "cross" else real
        reference = make_attention(specification, part)
        expected = run_oracle(reference, queries, states, padding)[real]
        expected_gradients = gradients(expected, states, reference.parameters())
        for implementation in implementations_of(specification, part):
            where = f"{implementation}, padding {side}: "
            window = {"window": 2 * T + 1} if implementation == "blocked" else {}  # as good as none
            attention = make_attention({**window, **specification}, part, implementation)
            with torch.set_grad_enabled(
                implementation != "flex_attention"
            ):  # which has no backward on CPU
                sources = states if part == "cross" else None
                output = attention(queries, key_value_states=sources, attention_mask=masks)[0][real]
            assert_close(output, expected, rtol=0, atol=1e-5, msg=lambda text, at=where: at + text)
            if side == "right":
                sources = states[:1] if part == "cross" else None
                with torch.no_grad():
                    alone = attention(
                        queries[:1], key_value_states=sources, attention_mask=AttentionMasks()
                    )[0][0]
                assert_close(
                    alone,
                    expected[: len(alone)],
                    rtol=0,
                    atol=1e-5,
                    msg=lambda text, at=where: f"{at}alone: {text}",
                )
            if output.requires_grad:
                assert_close(
                    gradients(output, states, attention.parameters()),
                    expected_gradients,
                    rtol=1e-4,
                    atol=1e-5,
                    msg=lambda text, at=where: at + text,
                )


@torch.no_grad()
def test_as_many_rounds_as_queries_correct_a_gaussian_exactly(monkeypatch):
    """In training all centres of a target are found at once, by rounds."""
    states, padding, _ = sentences("right")
    attention = make_attention(CROSS_ALONE["self-correcting gaussian"], "cross")
    masks = AttentionMasks(None, padding, padding.int().argmax(dim=-1))

    def attend():
        return attention(states, key_value_states=states, attention_mask=masks)[0]

    expected = attend()
    attention.train()
    errors = []
    for rounds in (1, 2, T):
        monkeypatch.setattr(gaussian, "_ROUNDS", rounds)
        errors.append((attend() - expected).abs().max().item())
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-5


@pytest.mark.parametrize("training", [False, True])
@torch.no_grad()
def test_a_corrected_gaussian_always_moves_on(training):
    """Also where attention to the last word holds it back: with equal steps by half of one, so that
    a text ends.
    """
    attention = make_attention(CROSS_ALONE["self-correcting gaussian"], "cross").train(training)
    predictor = attention.moving_gaussian
    predictor.step_proj.weight.zero_()
    step = torch.nn.functional.softplus(predictor.step_proj.bias).item()
    states = torch.randn(1, 60, H * D, generator=torch.Generator().manual_seed(2))
    terms = []
    attention.observe_terms = terms.extend
    attention(states, key_value_states=states[:, :3], attention_mask=AttentionMasks())
    moves = terms[0].center.diff()
    assert moves.min() > step / 2 - 1e-5
    assert moves[..., -1].item() == pytest.approx(step / 2, abs=1e-4)


@torch.no_grad()
def test_a_corrected_gaussian_holds_no_matrix_of_all_pairs_in_evaluation():
    attention = make_attention(CROSS_ALONE["self-correcting gaussian"], "cross").eval()
    states = torch.randn(1, 600, H * D, generator=torch.Generator().manual_seed(2))
    predictor = attention.moving_gaussian
    queries = attention._split_heads(states)
    call = AttentionCall(queries, queries, queries, KeyArea(), scale=1.0)
    with Operations() as operations:
        predictor(call)
    assert operations.largest == H * 64 * 600


def assert_equal_at_real_tokens(function, reference, parameters, side):
    states, padding, real = sentences(side)
    outputs = (
        function(states, AttentionMasks(None, padding))[real],
        reference(states, padding).float()[real],
    )
    assert_close(*outputs, rtol=1e-5, atol=1e-5)
    output_gradients = [gradients(output, states, parameters) for output in outputs]
    assert_close(*output_gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [1, 3, 9])
@pytest.mark.parametrize("side", PADDINGS)
def test_block_equals_the_oracle(length, side):
    attention = make_attention({"block": {"length": length, "width": 3}})
    parameters = dict(attention.block.named_parameters())
    assert list(attention.parameters()) == list(parameters.values()), "no projections beside it"
    assert_equal_at_real_tokens(
        lambda states, masks: attention(states, attention_mask=masks)[0],
        lambda states, padding: block_self_attention(
            states, parameters, block_length=length, key_padding_mask=padding
        ),
        parameters.values(),
        side,
    )


@pytest.mark.parametrize("side", PADDINGS)
def test_convolutions_equal_the_oracle(side):
    attention = make_attention({"cnn": {"kernel_size": 3, "layers": 2}, "window": 3})
    parameters = dict(attention.cnn.named_parameters())
    assert_equal_at_real_tokens(
        attention.before,
        lambda states, padding: convolutions(states, parameters, key_padding_mask=padding),
        parameters.values(),
        side,
    )


def test_convolutions_have_the_model_s_dropout_in_training():
    attention = make_attention({"cnn": {"kernel_size": 3, "layers": 1}}, dropout=0.5).train()
    states = torch.randn(1, 200, H * D)
    before = attention.before(states, None) - states
    still = attention.eval().before(states, None) - states
    assert_close(before[before != 0], 2 * still[before != 0])
    dropped = ((before == 0) & (still != 0)).sum() / (still != 0).sum()
    assert 0.4 < dropped < 0.6


def test_attentions_of_a_model_with_blocks():
    """A replaced attention has weights of zero, so that the others' are where they were."""
    model = tiny_model(
        attn_implementation="eager", **{**PLAIN, "encoder_locality": [{"block": 3}, None]}
    )
    attentions = model.get_encoder()(**padded_sources((6, 4)), output_attentions=True).attentions
    assert [weights.shape for weights in attentions] == [(2, 4, 6, 6)] * 2
    assert [weights.any().item() for weights in attentions] == [False, True]


@torch.no_grad()
def test_a_block_longer_than_the_sentence_costs_no_more_than_the_sentence():
    states, padding, _ = sentences("left")
    masks = AttentionMasks(padding=padding)
    expected = make_attention({"block": T})(states, attention_mask=masks)[0]
    with Operations() as operations:
        output = make_attention({"block": 200})(states, attention_mask=masks)[0]
    assert_close(output, expected)
    assert operations.largest < 200 * 200


@torch.no_grad()
def test_a_moving_gaussian_keeps_its_place_in_caches_that_others_make():
    """And where drafts are taken back."""
    gaussian = {"moving_gaussian": {"width": 3.0, "gain": 0.4, "ends_within": 1}}
    locality = {"decoder_locality": [{"window": 5}, None], "cross_locality": [None, gaussian]}
    model = tiny_model(**{**PLAIN, **locality})
    sources = padded_sources((9, 4))
    search = {"num_beams": 2, "min_new_tokens": 9, "max_new_tokens": 9}
    expected = model.generate(**sources, **search, use_cache=False)
    parts = EncoderDecoderCache(*(DynamicCache(config=model.config) for _ in range(2)))
    for cache in (DynamicCache(), parts):
        assert torch.equal(model.generate(**sources, **search, cache=cache), expected)
    first_source = {name: tensor[:1] for name, tensor in sources.items()}
    looked_up = model.generate(**first_source, max_new_tokens=20, prompt_lookup_num_tokens=3)
    assert torch.equal(looked_up, model.generate(**first_source, max_new_tokens=20))


@pytest.mark.parametrize("length", [10, 100, 1000])
@torch.no_grad()
def test_a_self_correcting_gaussian_moves_alike_in_steps_and_at_once(length):
    gaussian = {"moving_gaussian": {"width": 3.0, "gain": 0.4, "ends_within": 4}}
    model = tiny_model(**{**PLAIN, "sinusoids": None, "cross_locality": [gaussian] * 2}).double()
    sources = padded_sources((length, 5))
    ids = torch.randint(3, VOCABULARY, (2, length), generator=torch.Generator().manual_seed(5))
    targets = {"decoder_input_ids": ids}
    chunks = [length - 5, *[1] * 5]
    stepwise, _ = decode_in_steps(model, sources, targets, chunks)
    assert_close(stepwise, model(**sources, **targets).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("gain", [0.0, 0.4])
@torch.no_grad()
def test_the_end_falls_with_the_source_left_beyond_the_limit(gain):
    """Of the last layer's centre, the mean of its heads', by 4 at most; training and losses have
    the logits as they are.
    """
    gaussian = {"width": 3.0, "gain": gain}

    def make(**limit):
        return tiny_model(
            **{**PLAIN, "cross_locality": [{"moving_gaussian": gaussian | limit}] * 2}
        )

    model, free = make(ends_within=4.5), make()
    sources = padded_sources((12, 7))
    targets = {"decoder_input_ids": torch.randint(3, VOCABULARY, (2, 12))}
    for name in ("input_ids", "attention_mask"):
        sources[name] = sources[name].flip(1)  # padding on the left
    centers = []
    model.model.decoder.layers[1].encoder_attn.observe_terms = lambda terms: centers.append(
        terms[0].center
    )
    logits = model(**sources, **targets).logits
    expected = free(**sources, **targets).logits
    for row, length in enumerate((12, 7)):
        for query in range(12):
            left = length - 1 - centers[0][row, :, query].mean()
            expected[row, query, model.config.eos_token_id] -= min(max(left - 4.5, 0.0), 4.0)
    assert_close(logits, expected)
    assert 0 < (logits != free(**sources, **targets).logits).sum() < 24
    assert torch.equal(
        model(**sources, labels=targets["decoder_input_ids"]).loss,
        free(**sources, labels=targets["decoder_input_ids"]).loss,
    )
    in_training = model.train()(**sources, **targets).logits
    assert torch.equal(in_training, free.train()(**sources, **targets).logits)


@torch.no_grad()
def test_the_end_falls_alike_under_a_full_layer():
    """The layers that follow have no centre, whatever computes their attention."""
    gaussian = {"moving_gaussian": {"width": 3.0, "ends_within": 1}}
    model = tiny_model(**{**PLAIN, "cross_locality": [gaussian, None]})
    sources = padded_sources((12, 7))
    targets = {"decoder_input_ids": torch.randint(3, VOCABULARY, (2, 5))}
    expected = model(**sources, **targets).logits
    end = model.config.eos_token_id
    assert (expected - model(**sources, labels=targets["decoder_input_ids"]).logits)[..., end].any()
    model.set_attn_implementation("eager")
    assert_close(model(**sources, **targets).logits, expected)


@torch.no_grad()
def test_a_doubtful_end_far_from_the_source_s_end_is_passed_over():
    lengths = {}
    for limit in (0, 2):
        gaussian = {"moving_gaussian": {"width": 3.0, "ends_within": limit}}
        model = tiny_model(**{**PLAIN, "cross_locality": [gaussian] * 2})
        model.lm_head.weight.zero_()
        model.final_logits_bias[:, 7] = 1.0
        model.final_logits_bias[:, model.config.eos_token_id] = 4.0
        output = model.generate(**padded_sources((100, 4)), max_length=90)
        lengths[limit] = [int((row != 0).sum()) for row in output]
    assert lengths[0] == [1, 1]
    assert lengths[2][0] > 30
    assert lengths[2][1] == 1


@pytest.mark.parametrize("method", ["relative_bias", "relative_positions"])
def test_layers_share_tables(method, tmp_path):
    """One parameter, which all layers train, saved once; without `shared` each has its own."""

    def model_of(shared):
        specification = {"window": 5, method: {"max_distance": 20, "shared": shared}}
        return tiny_model(
            **{**PLAIN, "encoder_layers": 3},
            encoder_locality=[None, specification, specification],
            decoder_locality=[specification] * 2,
        )

    def tables(stack):
        modules = [getattr(layer.self_attn, method, None) for layer in stack.layers]
        parameters = set()
        for module in filter(None, modules):
            parameters.update(module.parameters())
        return parameters

    model = model_of(shared=True)
    sources = padded_sources((9, 4))
    model(**sources, labels=sources["input_ids"]).loss.backward()
    shared = tables(model.model.encoder)
    assert all(table.grad.any() for table in shared)
    assert shared.isdisjoint(tables(model.model.decoder))
    assert len(tables(model_of(shared=False).model.encoder)) == 2 * len(shared)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert len(tables(loaded.model.encoder)) == len(shared)
    batch = {**sources, "labels": sources["input_ids"]}
    assert torch.equal(model(**batch).logits, loaded(**batch).logits)


@pytest.mark.parametrize(
    ("buckets", "max_distance", "bidirectional"),
    [
        (32, 128, True),
        (32, 128, False),
        # The logarithm of a distance lies within rounding of a bucket's edge
        (12, 294, False),
        (16, 121, True),
        (24, 363, False),
        (46, 164, False),
    ],
)
def test_buckets_are_those_of_t5(buckets, max_distance, bidirectional):
    states = torch.empty(1, 1, 1, 1).expand(1, 1, 370, 1)
    area = KeyArea(causal=not bidirectional)
    cells = DenseCells(AttentionCall(states, states, states, area, 1.0))
    numbers = torch.arange(buckets, dtype=torch.float32)[None]
    term = RelativeBiasTerm(numbers, max_distance, causal=not bidirectional)
    distances = cells.distance if bidirectional else cells.distance.clamp(max=0)
    expected = T5Attention._relative_position_bucket(
        distances, bidirectional=bidirectional, num_buckets=buckets, max_distance=max_distance
    )
    actual = term.energy(cells)[0, 0].long()
    visible = area.within_window(cells.distance)
    assert torch.equal(actual[visible], expected[visible])


# The Gaussian's numbers


def energies_of(term, call):
    return term.energy(DenseCells(call)).expand(-1, H, -1, -1)


@pytest.mark.parametrize("strategy", ["layer", "query", "head"])
@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_a_predicted_window_has_a_floor(strategy, part):
    """With z at minus infinity D is the floor, G and its gradients are finite."""
    module = make_attention({"gaussian": strategy}, part).localness
    with torch.no_grad():
        if strategy == "head":
            module.head_window.fill_(-1e4)
        else:
            (module.query_proj if strategy == "query" else module.key_proj).weight.fill_(1.0)
            module.window_proj.weight.fill_(-1e4)
    query, key = (torch.ones(1, H, 6, D, requires_grad=True) for _ in range(2))
    call = AttentionCall(query, key, key, KeyArea(causal=part == "decoder"), 1.0)
    term = module(call)
    energies = energies_of(term, call)
    center = term.center.detach().expand(1, H, 6)
    expected = gaussian_energy(center, torch.full_like(center, MINIMUM_WINDOW), 6)
    assert_close(energies.double(), expected, rtol=1e-4, atol=1e-5)
    energies.sum().backward()
    assert all(p.grad.isfinite().all() for p in module.parameters() if p.grad is not None)
    assert query.grad.isfinite().all()


def test_a_window_below_the_floor_can_widen_again():
    """A clamp would leave it without a gradient; from 0.12 tokens on the window is as predicted."""
    predicted = torch.tensor([0.0, 0.03, 0.12, 4.0], requires_grad=True)
    widths = raise_to_floor(predicted)
    assert_close(widths.detach(), torch.tensor([0.1, 0.103, 0.12, 4.0]))
    states = torch.zeros(1, H, 4, D)
    term = GaussianTerm(torch.full((1, 1, 4), 1.3), widths[None, None])
    energies_of(term, AttentionCall(states, states, states, KeyArea(), 1.0)).sum().backward()
    assert (predicted.grad > 0).all()


def test_half_precision_is_computed_in_float32():
    module = make_attention({"gaussian": "query"}).localness.bfloat16()
    states = torch.randn(1, H, 40, D, dtype=torch.bfloat16)
    call = AttentionCall(states, states, states, KeyArea(), 1.0)
    term = module(call)
    assert term.center.dtype == term.width.dtype == energies_of(term, call).dtype == torch.float32
