# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What is local where: both forms of the config, what they refuse, and a method from outside the package."""

import json
import logging
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from tiny import PLAIN, padded_sources
from tiny import csan as tiny_model

from csan_hf import CsanConfig, CsanForConditionalGeneration
from csan_hf.analysis import attention_reaches, draw_locality
from csan_hf.hub.network_text import describe_locality, short_name
from csan_hf.models.attention_call import Term
from csan_hf.models.locality import LocalityMethod, LocalityModule, register_locality, unregister_locality

SIZES = {"d_model": 16, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "vocab_size": 20}
SHALLOW = {**SIZES, "encoder_layers": 2, "decoder_layers": 2}


def specifications(config, part):
    localities = [config.layer_locality(part, index) for index in range(2)]
    return [None if locality is None else locality.methods for locality in localities]


def test_both_forms_say_the_same():
    short = CsanConfig(
        **SHALLOW,
        local_window=5,
        head_area=3,
        localness_window="fixed",
        localness_window_size=4,
        localness_layers=[1],
        decoder_localness_layers=[0],
        cross_localness_layers=[1],
    )
    gaussian = {"gaussian": {"width": "fixed", "size": 4}}
    everything = {"window": 5, "head_area": 3, **gaussian}
    long = CsanConfig(
        **SHALLOW,
        encoder_locality=[None, everything],
        decoder_locality=[everything, None],
        cross_locality=[None, gaussian],
    )
    for part in ("encoder", "decoder", "cross"):
        assert specifications(short, part) == specifications(long, part)
    locality = long.layer_locality("decoder", 0)
    assert (locality.area.window, locality.area.head_area, locality.area.causal) == (5, 3, True)
    assert locality.past_tokens == 2
    with pytest.raises(AttributeError):
        locality.part = "encoder"


@pytest.mark.parametrize(
    "fields",
    [{"local_window": 5}, {"encoder_locality": [{"window": 5, "relative_positions": 2}, None]}, {}],
    ids=["short", "long", "default"],
)
def test_neither_form_is_invented(fields, tmp_path):
    config = CsanConfig(**SHALLOW, **fields)
    config.save_pretrained(tmp_path)
    loaded = CsanConfig.from_pretrained(tmp_path)
    assert loaded.to_dict() == config.to_dict()
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["encoder_locality"] == fields.get("encoder_locality")
    assert specifications(loaded, "encoder") == specifications(config, "encoder")


@pytest.mark.parametrize(
    ("part", "specification", "message"),
    [
        ("encoder", {"windw": 5}, r"encoder_locality\[0\].*'windw'.*did you mean 'window'"),
        ("encoder", {"wavelets": 5}, r"'wavelets'.*with `register_locality`"),
        ("encoder", 7, r"encoder_locality\[0\].*got 7"),
        ("encoder", {"gaussian": {"widht": "query"}}, r"gaussian.* its settings are width, size .*'widht'"),
        ("encoder", {"gaussian": {"size": 3}}, r"encoder_locality\[0\].gaussian.*missing.*'width'"),
        ("encoder", {"gaussian": "quary"}, r"gaussian` must be one of .*'query'.*got 'quary'"),
        ("encoder", {"window": 4}, r"encoder_locality\[0\].window.*odd.*got 4"),
        ("encoder", {"window": None}, r"encoder_locality\[0\].window.*odd.*got None"),
        ("decoder", {"head_area": 9}, r"decoder_locality\[0\].head_area.*at most 2H - 1 of H = 4.*got 9"),
        ("cross", {"window": 3}, r"cross_locality\[0\].window.*no meaning in cross-attention"),
        ("encoder", {"head_area": 3, "relative_positions": {"per_head": True}}, r"positions` .*beside 'head_area'"),
        ("decoder", {"bi_direct": True}, r"bi_direct.*no meaning in the decoder's self-attention"),
        ("encoder", {"bi_direct": 2}, r"bi_direct` is 2, but its settings are none: it is True"),
        ("encoder", {"neighbor": True, "gaussian": "query"}, r"neighbor`.*beside 'gaussian': a query has one"),
        ("encoder", {"local_hard": 0.5}, r"local_hard` must be a number of tokens from 1 to .*, got 0.5"),
        ("encoder", {"local_hard": {"cut_off": "no"}}, r"local_hard.cut_off` must be one of \[True, False\]"),
        ("encoder", {"block": 4, "cnn": 7}, r"block`.*beside 'cnn': nothing.*replaces the attention"),
        ("encoder", {"block": 0}, r"block.length` must be a number of tokens from 1 to .*, got 0"),
        ("encoder", {"cnn": 4}, r"cnn.kernel_size` must be an odd number of tokens.*got 4"),
    ],
)
def test_impossible_specifications_are_refused(part, specification, message):
    with pytest.raises(ValueError, match=message):
        CsanConfig(**SHALLOW, **{f"{part}_locality": [specification, None]})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"encoder_locality": [{"window": 3}]}, r"`encoder_locality` must hold one .* each of the 2 layers"),
        (
            {"encoder_locality": [None, None], "localness_layers": [1]},
            "`localness_layers` .* beside `encoder_locality`",
        ),
        ({"encoder_locality": [None, None], "local_window": 7}, r"`local_window` \(7\).*`encoder_locality`"),
        ({"encoder_attention_heads": 1, "encoder_locality": [{"bi_direct": True}] * 2}, r"bi_direct` .*even.*got 1"),
        ({"encoder_attention_heads": 1}, "`head_area`"),
        ({"local_windw": 5}, r"no field 'local_windw'. Did you mean 'local_window'"),
    ],
)
def test_impossible_fields_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        CsanConfig(**{**SHALLOW, **fields})


@pytest.fixture
def warnings(caplog):
    logger = logging.getLogger("transformers")
    logger.propagate = True
    logger.addHandler(caplog.handler)
    yield lambda: " ".join(record.getMessage() for record in caplog.records)
    logger.removeHandler(caplog.handler)
    logger.propagate = False


def test_what_has_no_effect_is_said(warnings):
    CsanConfig(**SHALLOW, local_window=None, head_area=1, decoder_localness_layers=[1])
    assert "Layers [1] are to be local, but `local_window`" in warnings()
    assert CsanConfig(**SHALLOW, curriculum="slow").curriculum == "slow"
    assert "no field 'curriculum'" in warnings()
    assert CsanConfig.from_dict({**CsanConfig(**SHALLOW).to_dict(), "transformers_version": "5", "local_windw": 5})
    assert "no field 'local_windw'" in warnings(), "a config saved earlier loads"


def test_unknown_keywords_of_the_model_are_said(warnings):
    model = tiny_model()
    sources = padded_sources((4, 3))
    with pytest.raises(TypeError, match=r"'decoder_inputs_ids'. Did you mean 'decoder_input_ids'"):
        model(**sources, decoder_inputs_ids=sources["input_ids"])
    model(**sources, labels=sources["input_ids"], num_items_in_batch=3, output_hidden_states=True, return_dict=True)
    assert "has no argument" not in warnings()
    model(**sources, task_mood="merry")
    assert "no argument 'task_mood'" in warnings()


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ({"local_hard": True}, {"local_hard": 10.0}),
        ({"cnn": True}, {"cnn": {"kernel_size": 7, "layers": 4}}),
        ({"block": True}, {"block": 4}),
        ({"relative_positions": True}, {"relative_positions": 16}),
        ({"head_area": 1}, None),
        ({"head_area": 1, "window": 5}, {"window": 5}),
    ],
)
def test_true_means_the_defaults_and_an_area_of_one_head_nothing(short, full):
    configs = [CsanConfig(**SHALLOW, encoder_locality=[specification, None]) for specification in (short, full)]
    assert specifications(configs[0], "encoder") == specifications(configs[1], "encoder")


def test_the_area_limit_applies_where_an_area_is():
    assert not CsanConfig(**{**SHALLOW, "encoder_attention_heads": 1}, localness_layers=[]).localities()


def test_presets():
    config = CsanConfig.preset("rel_pos", encoder_layers=4, vocab_size=50)
    assert config.local_layers("encoder") == [0, 1, 2]
    assert (config.d_model, config.vocab_size) == (512, 50)
    assert CsanConfig.preset("csan_2d").layer_locality("encoder", 0) == CsanConfig().layer_locality("encoder", 0)
    assert CsanConfig.preset("csan_1d", local_window=7).layer_locality("encoder", 2).area.window == 7
    with pytest.raises(ValueError, match=r"no preset 'csan_3d'.*Did you mean"):
        CsanConfig.preset("csan_3d")


# An eighth method, as somebody else would add it: even heads see keys of one parity alone, with a learned preference.


@dataclass
class StridedTerm(Term):
    strength: torch.Tensor  # [H]
    step: int

    def visible(self, cells):
        return (cells.distance % self.step == 0) | (cells.head % 2 == 1)

    def energy(self, cells):
        strength = cells.of_query(self.strength[None, :, None])
        return -strength * (cells.key_position - cells.query_position).abs()


class StridedModule(LocalityModule):
    def __init__(self, heads):
        super().__init__()
        self.strength = torch.nn.Parameter(torch.zeros(heads))


@dataclass(frozen=True)
class Strided(LocalityMethod):
    step: int
    key: ClassVar[str] = "strided"

    def build(self, site):
        return StridedModule(site.num_heads)

    def term(self, module, call):
        return StridedTerm(module.strength, self.step)


@pytest.fixture
def strided():
    register_locality(Strided)
    yield {**PLAIN, "encoder_locality": [{"strided": 2}, {"strided": {"step": 3}, "window": 5}]}
    unregister_locality("strided")


def test_a_method_from_outside_is_trained_saved_drawn_and_described(strided, tmp_path):
    model = tiny_model(**strided).train()
    sources = padded_sources((9, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(4):
        loss = model(**sources, labels=sources["input_ids"]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    strength = model.model.encoder.layers[1].self_attn.strided.strength
    assert strength.any(), "its parameters learn"
    model.save_pretrained(tmp_path)
    loaded = CsanForConditionalGeneration.from_pretrained(tmp_path)
    assert torch.equal(model.eval()(**sources).logits, loaded(**sources).logits)
    draw_locality(model.config, tmp_path / "picture.png")
    seen = attention_reaches(model.config, length=7)[0].positions > 0
    assert seen[0].tolist() == [True, False] * 3 + [True]
    assert "strided (step 2)" in " ".join(describe_locality(model.config.to_dict()))
    assert short_name(model.config.to_dict()) == "1D-CSAN (5) with strided"


@pytest.mark.parametrize("implementation", ["sdpa", "blocked", "flex_attention"])
@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile.*")
@torch.no_grad()
def test_every_backend_runs_a_method_from_outside(strided, implementation):
    sources = padded_sources((9, 4))
    eager, other = (tiny_model(attn_implementation=name, **strided) for name in ("eager", implementation))
    for model in (eager, other):
        model.model.encoder.layers[0].self_attn.strided.strength.fill_(0.3)
    real = sources["attention_mask"].bool()
    states = [model.get_encoder()(**sources).last_hidden_state[real] for model in (eager, other)]
    torch.testing.assert_close(*states, rtol=1e-4, atol=1e-5)


def test_a_config_that_names_an_unregistered_method_says_so(strided, tmp_path):
    tiny_model(**strided).save_pretrained(tmp_path)
    unregister_locality("strided")
    try:
        with pytest.raises(ValueError, match=r"'strided'.*with `register_locality` of csan_hf"):
            CsanForConditionalGeneration.from_pretrained(tmp_path)
    finally:
        register_locality(Strided)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"key": "window"}, "'window'.* taken by Window"),
        ({"key": "other", "module_name": "localness"}, "'localness'.* taken by Gaussian"),
        ({"key": "q_proj"}, "'q_proj'.* taken by the attention"),
    ],
)
def test_names_are_taken_once(attributes, message):
    with pytest.raises(ValueError, match=message):
        register_locality(type("Other", (Strided,), attributes))


def test_a_replacement_stands_alone():
    @dataclass(frozen=True)
    class Averaging(LocalityMethod):
        key: ClassVar[str] = "averaging"
        parts: ClassVar[tuple[str, ...]] = ("encoder",)

        def attend(self, module, states, padding):
            return states.mean(dim=1, keepdim=True).expand_as(states), None

        def before(self, module, states, padding):
            return states + 1

    register_locality(Averaging)
    try:
        with pytest.raises(ValueError, match=r"averaging`.*beside 'window'.*replaces the attention"):
            CsanConfig(**SHALLOW, encoder_locality=[{"averaging": True, "window": 3}, None])
        with pytest.raises(ValueError, match="averaging` is 3, but its settings are none"):
            CsanConfig(**SHALLOW, encoder_locality=[{"averaging": 3}, None])
        model = tiny_model(**{**PLAIN, "encoder_locality": [{"averaging": True}, None]})
        layer = model.model.encoder.layers[0]
        states = torch.randn(2, 5, 32)
        attended = layer.self_attn_layer_norm(states + 1 + (states + 1).mean(dim=1, keepdim=True))
        expected = layer.final_layer_norm(attended + layer.fc2(torch.relu(layer.fc1(attended))))
        torch.testing.assert_close(layer(states), expected)
        assert not hasattr(layer.self_attn, "q_proj")
    finally:
        unregister_locality("averaging")
