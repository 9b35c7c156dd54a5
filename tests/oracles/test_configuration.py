# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""CsanConfig: defaults, presets, what is local where in both forms, what is refused and with which
words.
"""

import json

import pytest
import tiny
import torch
from tiny import CSAN_SIZES as SHALLOW
from tiny import PLAIN

from csan_hf import CsanConfig, CsanForConditionalGeneration
from csan_hf.families import FAMILIES
from csan_hf.hub import locality_picture
from csan_hf.hub.locality_reach import attention_reaches
from csan_hf.hub.model_card import PAPERS
from csan_hf.hub.network_text import (
    added_parameters,
    describe_locality,
    locality_papers,
    short_name,
)
from csan_hf.models.locality_methods import LOCALITY_METHODS


def methods_of(config, part):
    localities = [config.layer_locality(part, index) for index in range(2)]
    return [None if locality is None else locality.methods for locality in localities]


def test_defaults_are_the_papers_2d_csan():
    config = CsanConfig()
    local = {"window": 11, "head_area": 3}
    assert config.encoder_locality == [local] * 3 + [None] * 3
    assert config.decoder_locality == config.cross_locality == [None] * 6
    assert CsanConfig(encoder_layers=2).encoder_locality == [local] * 2


# Millions of parameters that a preset adds to base in three layers (NAACL 2019, Table 1), its name, a
# phrase of its description, its paper. The paper has 6.0 for block (its authors' own width of 300 is
# nearest) and 42.6 for cnn: 159 separable convolutions or six full ones of kernel 9.
PRESETS = {
    "bi_direct": (
        0.0,
        "heads of the past and of the future",
        "half the query and what follows",
        "shen-etal-2018-disan",
    ),
    "rel_pos": (0.1, "relative positions", "up to 16 tokens", "shaw-etal-2018-self"),
    "neighbor": (
        0.4,
        "a Gaussian around each query",
        "+133,120 parameters",
        "sperber-etal-2018-self",
    ),
    "local_hard": (
        0.4,
        "a Gaussian around a predicted position",
        "window of 10",
        "luong-etal-2015-effective",
    ),
    "local_soft": (0.8, "Gaussian localness", "+270,336 parameters", "yang-etal-2018-modeling"),
    "block": (6.3, "block self-attention", "4 tokens, 300 features", "shen-etal-2018-block"),
    "cnn": (
        3.2,
        "convolutions",
        "4 depthwise separable convolutions of 7 tokens",
        "yu-etal-2018-qanet",
    ),
    "csan_1d": (0.0, "1D-CSAN (11)", "no parameters added", "yang-etal-2019-convolutional"),
    "csan_2d": (0.0, "2D-CSAN (3×11)", "no parameters added", "yang-etal-2019-convolutional"),
}


@pytest.mark.parametrize(
    ("preset", "millions", "name", "phrase", "paper"),
    [(preset, *row) for preset, row in PRESETS.items()],
)
def test_presets(preset, millions, name, phrase, paper):
    def size(config):
        with torch.device("meta"):
            return CsanForConditionalGeneration(config).num_parameters()

    config = CsanConfig.preset(preset, vocab_size=100)
    assert (config.d_model, config.vocab_size) == (512, 100)
    assert config.local_layers("encoder") == [0, 1, 2]
    assert not config.local_layers("decoder") + config.local_layers("cross")
    plain = CsanConfig.base(vocab_size=100, local_window=None, head_area=1)
    added = size(config) - size(plain)
    assert added == sum(added_parameters(config, "encoder", layer) for layer in range(6))
    assert round(added / 1e6, 1) == millions
    assert short_name(config.to_dict()) == (name if "CSAN" in name else f"Transformer with {name}")
    [sentence] = describe_locality(config.to_dict())
    assert "layers 1, 2, 3 of 6" in sentence
    assert phrase in sentence
    assert locality_papers(config.to_dict()) == [paper]


def test_the_preset_for_long_texts_is_local_in_every_layer():
    config = CsanConfig.preset("long", encoder_layers=4, decoder_layers=2)
    same = CsanConfig.from_dict(config.to_dict(), decoder_layers=2)
    assert same.localities() == config.localities()
    assert config.position_embeddings is config.position_limit is None
    assert config.takes_any_length
    assert not CsanConfig(position_embeddings=None).takes_any_length
    for part, depth in (("encoder", 4), ("decoder", 2)):
        specification = {"window": 11, "relative_positions": 16}
        assert config.specifications(part) == [specification] * depth
    moving = {"moving_gaussian": {"gain": 0.1, "ends_within": 50}}
    assert config.specifications("cross") == [moving] * 2
    areas = CsanConfig.preset("long", head_area=3, local_window=5)
    specification = {"window": 5, "relative_positions": 16, "head_area": 3}
    assert areas.specifications("decoder") == [specification] * 6
    assert areas.specifications("cross") == [moving] * 6
    plain = CsanConfig.preset("long", decoder_layers=1, cross_locality=[None], sinusoids="marian")
    assert plain.specifications("cross") == [None]
    assert plain.position_embeddings == "sinusoidal"
    partly_local = CsanConfig.preset("long", encoder_layers=2, localness_layers=[1])
    assert partly_local.encoder_locality == [None, {"window": 11, "relative_positions": 16}]


def test_a_preset_takes_fields_and_suggests_names():
    assert CsanConfig.preset("csan_2d").layer_locality("encoder", 0) == CsanConfig().layer_locality(
        "encoder", 0
    )
    assert (
        CsanConfig.preset("csan_1d", local_window=7).layer_locality("encoder", 2).area.window == 7
    )
    with pytest.raises(ValueError, match=r"no preset 'csan_3d'.*Did you mean"):
        CsanConfig.preset("csan_3d")


def test_short_form_beside_a_preset_composes():
    rel_pos = {"relative_positions": {"max_distance": 16, "per_head": True}}
    gaussian = {"gaussian": {"width": "fixed", "size": 4.0}}
    for fields, added in [
        ({"local_window": 11}, {"window": 11}),
        ({"local_window": 9}, {"window": 9}),
        ({"localness_window": "fixed", "localness_window_size": 4.0}, gaussian),
    ]:
        config = CsanConfig.preset("rel_pos", **fields)
        assert config.specifications("encoder") == [{**rel_pos, **added}] * 3 + [None] * 3
        assert CsanConfig.from_dict(config.to_dict()).localities() == config.localities()
    config = CsanConfig.preset(
        "bi_direct", head_area=3, head_boundary="circular", localness_layers=[5]
    )
    area = {"head_area": {"size": 3, "boundary": "circular"}}
    assert config.specifications("encoder") == [None] * 5 + [{"bi_direct": True, **area}]
    config = CsanConfig.preset("bi_direct", local_window=11, decoder_localness_layers=[0])
    assert config.specifications("decoder")[0] == {"window": 11}
    # An area of heads has one softmax, and so one table
    first_layer, *_ = CsanConfig.preset("rel_pos", head_area=3).specifications("encoder")
    assert first_layer["relative_positions"] == {"max_distance": 16, "per_head": False}


def test_a_card_can_cite_the_paper_of_every_method_and_family():
    cited = PAPERS.read_text(encoding="utf-8")
    for family in FAMILIES.values():
        for paper in family.papers:
            assert f"@inproceedings{{{paper}," in cited
    for method in LOCALITY_METHODS:
        specification = {
            method.key: {"window": 3, "head_area": 3, "gaussian": "query"}.get(method.key, True)
        }
        part = next(iter(method.parts))
        depth = {"encoder_layers": 1, "decoder_layers": 1, "encoder_locality": [None]}
        [paper] = locality_papers({**depth, f"{part}_locality": [specification]})
        assert f"{{{paper},\n" in cited


# Specifications of six layers, and what a picture says of each
EVERY_METHOD = [
    ({"bi_direct": True, "window": 5}, "window (size 5)\nbi direct"),
    (
        {"relative_positions": {"max_distance": 2, "per_head": True}},
        "relative positions (max distance 2, per head True, shared False)",
    ),
    ({"gaussian": "head"}, "gaussian (width head, size 10.0): drawn around i + 2, 10 wide"),
    ({"local_hard": {"width": 4, "cut_off": True}}, "cut off True): drawn as untrained"),
    ({"block": {"length": 3}}, "block (length 3"),
    ({"cnn": 3, "head_area": 3}, "cnn (kernel size 3"),
]


def test_every_method_is_drawn():
    locality = [specification for specification, _ in EVERY_METHOD]
    depth = {"encoder_layers": 6, "decoder_layers": 1}
    config = CsanConfig(**{**SHALLOW, **depth, "encoder_locality": locality})
    figure = locality_picture.plot_locality(config)
    blocks = next(reach for reach in attention_reaches(config, length=9) if reach.layers == (4,))
    assert (blocks.positions[4] == 1).tolist() == [False] * 3 + [True] * 3 + [False] * 3
    assert (blocks.positions > 0).all()
    texts = [row.get_suptitle() for row in figure.subfigs]
    assert len(texts) == 6
    assert all(caption in text for (_, caption), text in zip(EVERY_METHOD, texts, strict=False))


# Both forms


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
        assert methods_of(short, part) == methods_of(long, part)
    locality = long.layer_locality("decoder", 0)
    assert (locality.area.window, locality.area.head_area, locality.area.causal) == (5, 3, True)
    assert locality.past_tokens == 2


def test_the_long_form_alone_is_saved(tmp_path):
    config = CsanConfig(**SHALLOW, local_window=5, sinusoids="bart", localness_layers=[1])
    config.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert not {"local_window", "localness_layers", "sinusoids"} & written.keys()
    assert written["encoder_locality"] == [None, {"window": 5, "head_area": 3}]
    assert CsanConfig.from_pretrained(tmp_path).to_dict() == config.to_dict()
    # As it was saved before
    assert CsanConfig.from_dict({**SHALLOW, "encoder_locality": [None] * 2, "local_window": 11})


GAUSSIAN = {"gaussian": "query"}


@pytest.mark.parametrize(
    ("saved", "overrides", "encoder", "decoder"),
    [
        ({"head_area": 1}, {"local_window": 5}, [{"window": 5}] * 2, [None] * 2),
        (
            {"local_window": 5, "localness_layers": [1], "decoder_localness_layers": [0]},
            {"head_area": 1},
            [None, {"window": 5}],
            [{"window": 5}, None],
        ),
        (PLAIN, {"localness_window": "query"}, [GAUSSIAN] * 2, [None] * 2),
        (
            {**PLAIN, "encoder_locality": [None, GAUSSIAN]},
            {"localness_layers": [0], "localness_window_size": 3},
            [GAUSSIAN, None],
            [None] * 2,
        ),
        ({}, {"encoder_layers": 1}, [{"window": 11, "head_area": 3}], [None] * 2),
    ],
)
def test_the_short_form_changes_a_saved_locality(saved, overrides, encoder, decoder, tmp_path):
    CsanConfig(**{**SHALLOW, **saved}).save_pretrained(tmp_path)
    config = CsanConfig.from_pretrained(tmp_path, **overrides)
    assert (config.encoder_locality, config.decoder_locality) == (encoder, decoder)


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
    configs = [
        CsanConfig(**SHALLOW, encoder_locality=[specification, None])
        for specification in (short, full)
    ]
    assert methods_of(configs[0], "encoder") == methods_of(configs[1], "encoder")


# What is refused


@pytest.mark.parametrize(
    ("part", "specification", "message"),
    [
        ("encoder", {"windw": 5}, r"encoder_locality\[0\].*'windw'.*Did you mean 'window'"),
        ("encoder", {"wavelets": 5}, r"'wavelets'.*your own first: .*`csan-hf --import FILE`"),
        (
            "encoder",
            {"gaussian": {"widht": "query"}},
            r"gaussian.* its settings are width, size .*'widht'",
        ),
        ("encoder", {"gaussian": {"size": 3}}, r"encoder_locality\[0\].gaussian.*missing.*'width'"),
        (
            "encoder",
            {"gaussian": "quary"},
            r"gaussian.width` must be one of .*'query'.*got 'quary'",
        ),
        ("encoder", {"window": 4}, r"encoder_locality\[0\].window.*odd.*got 4"),
        (
            "decoder",
            {"head_area": 9},
            r"decoder_locality\[0\].head_area.*at most 2H - 1 of H = 4.*got 9",
        ),
        ("cross", {"window": 3}, r"cross_locality\[0\].window.*no meaning in cross-attention"),
        (
            "encoder",
            {"head_area": 3, "relative_positions": {"per_head": True}},
            r"positions` .*beside 'head_area'",
        ),
        ("encoder", {"moving_gaussian": True}, r"no meaning in the encoder's self-attention"),
        ("decoder", {"bi_direct": True}, r"bi_direct.*no meaning in the decoder's self-attention"),
        ("encoder", {"bi_direct": 2}, r"bi_direct` is 2, but its settings are none: it is True"),
        (
            "encoder",
            {"neighbor": True, "gaussian": "query"},
            r"neighbor`.*beside 'gaussian': a query has one",
        ),
        (
            "encoder",
            {"local_hard": 0.5},
            r"local_hard.width` must be .* at least 1 .* 2147483647, got 0.5",
        ),
        (
            "encoder",
            {"block": 4, "cnn": 7},
            r"block`.*beside 'cnn': nothing.*replaces the attention",
        ),
        ("encoder", {"cnn": 4}, r"cnn.kernel_size` must be an integer .* odd, got 4"),
    ],
)
def test_impossible_specifications_are_refused(part, specification, message):
    with pytest.raises(ValueError, match=message):
        CsanConfig(**SHALLOW, **{f"{part}_locality": [specification, None]})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"encoder_locality": [{"window": 3}]},
            r"`encoder_locality` must hold one .* each of the 2 layers",
        ),
        (
            {"encoder_locality": [None] * 2, "localness_layers": [1]},
            "`localness_layers` .* beside `encoder_locality`",
        ),
        (
            {"encoder_locality": [None, None], "local_window": 7},
            r"`local_window` \(7\).*`encoder_locality`",
        ),
        (
            {"encoder_attention_heads": 1, "encoder_locality": [{"bi_direct": True}] * 2},
            r"bi_direct` .*even.*got 1",
        ),
        ({"local_windw": 5}, r"no field 'local_windw'. Did you mean 'local_window'"),
        ({"local_window": 10**40 + 1}, "`local_window` must be .* at most 2147483647"),
        (
            {"localness_window": "fixed", "localness_window_size": 1e300},
            "size` must be .* at most 2147483647, got 1e",
        ),
    ],
)
def test_impossible_fields_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        CsanConfig(**{**SHALLOW, **fields})


def test_the_area_is_limited_by_the_heads_of_local_layers_alone():
    CsanConfig(head_area=15)  # 2H - 1 with 8 heads
    CsanConfig(head_area=7, head_boundary="circular")
    with pytest.raises(ValueError, match="at most 2H - 1 of H = 8 heads, 15, got 17"):
        CsanConfig(head_area=17)
    CsanConfig(**{**SHALLOW, "decoder_attention_heads": 1})
    one_head = {**SHALLOW, "encoder_attention_heads": 1}
    assert CsanConfig(**one_head, localness_layers=[], decoder_localness_layers=[1]).local_layers(
        "decoder"
    ) == [1]


def test_what_is_loaded_with_overrides_is_checked_as_everything_else(tmp_path):
    long, short = tmp_path / "long", tmp_path / "short"
    CsanConfig(encoder_layers=1, encoder_locality=[{"neighbor": True}]).save_pretrained(long)
    CsanConfig().save_pretrained(short)
    for directory, field, value in [
        (long, "local_window", 11),
        (long, "encoder_locality", [None, None]),
        (short, "local_window", 4),
        (short, "dropout", 7.0),
        (short, "localness_layers", [5, 6]),
        (short, "d_model", 500),
        (short, "hidden_size", "512"),
        (short, "encoder_layers", 10**8),
        (short, "architectures", [3]),
    ]:
        name = CsanConfig.attribute_map.get(field, field)
        with pytest.raises(ValueError, match=f"`{name}`"):
            CsanConfig.from_pretrained(directory, **{field: value})
    loaded, unused = CsanConfig.from_pretrained(
        short, local_window=5, unheard_of=1, return_unused_kwargs=True
    )
    assert (loaded.encoder_locality[0]["window"], unused) == (5, {"unheard_of": 1})
    assert CsanConfig.from_pretrained(short, vocab_size=70).decoder_vocab_size == 70


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "local_window",
            None,
            "`local_window`, set on a config, has no effect",
        ),
        ("sinusoids", None, "`sinusoids`, set on a config, has no effect"),
        ("encoder_layers", 3, "one item for each of the 3 layers"),
        ("encoder_attention_heads", 3, "must be a multiple of `encoder_attention_heads`"),
    ],
)
def test_what_is_changed_of_a_config_is_checked_by_the_model(field, value, message):
    config = tiny.csan().config
    setattr(config, field, value)
    with pytest.raises(ValueError, match=message):
        CsanForConditionalGeneration(config)


def test_a_config_takes_another_vocabulary():
    config = tiny.csan().config
    config.vocab_size = 70
    model = CsanForConditionalGeneration(config)
    assert model.lm_head.out_features == 70


def test_what_has_no_effect_is_said(caplog):
    CsanConfig(**SHALLOW, local_window=None, head_area=1, decoder_localness_layers=[1])
    assert "Layers [1] are to be local, but `local_window`" in caplog.text
    assert CsanConfig(**SHALLOW, curriculum="slow").curriculum == "slow"
    assert "no field 'curriculum'" in caplog.text
    assert CsanConfig.from_dict(
        {**CsanConfig(**SHALLOW).to_dict(), "transformers_version": "5", "local_windw": 5}
    )
    assert "no field 'local_windw'" in caplog.text, "a config saved earlier loads"
