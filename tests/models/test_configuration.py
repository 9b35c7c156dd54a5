# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""CsanConfig: defaults, presets, what is refused and with which words."""

import pytest

from csan_hf import CsanConfig, CsanForConditionalGeneration


def test_defaults_are_the_papers_2d_csan() -> None:
    config = CsanConfig()
    assert (config.local_window, config.head_area, config.head_boundary) == (11, 3, "mask")
    assert config.localness_window is None
    assert config.local_layers("encoder") == [0, 1, 2]
    assert config.local_layers("decoder") == config.local_layers("cross") == []


def test_shallow_encoder_is_local_throughout() -> None:
    assert CsanConfig(encoder_layers=2).local_layers("encoder") == [0, 1]


@pytest.mark.parametrize(("preset", "width", "heads", "ffn"), [("base", 512, 8, 2048), ("big", 1024, 16, 4096)])
def test_presets(preset: str, width: int, heads: int, ffn: int) -> None:
    config = getattr(CsanConfig, preset)(vocab_size=100)
    assert (config.d_model, config.encoder_attention_heads, config.decoder_ffn_dim) == (width, heads, ffn)
    assert config.encoder_layers == config.decoder_layers == 6
    assert config.vocab_size == config.decoder_vocab_size == 100


def test_base_localness_adds_the_papers_parameters() -> None:
    """LOCAL_SOFT adds 0.8M parameters to Transformer-base, windows and areas none (NAACL 2019, Table 1)."""
    import torch

    def count(**options: object) -> int:
        with torch.device("meta"):
            return CsanForConditionalGeneration(CsanConfig.base(vocab_size=100, **options)).num_parameters()

    plain = count(local_window=None, head_area=1)
    assert count(local_window=11, head_area=3) == plain
    soft = count(local_window=None, head_area=1, localness_window="query")
    assert round((soft - plain) / 1e6, 1) == 0.8


def test_largest_area_is_allowed() -> None:
    assert CsanConfig(head_area=15).head_area == 15  # 2H - 1 with 8 heads
    assert CsanConfig(head_area=7, head_boundary="circular").head_area == 7


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"local_window": 10**40 + 1}, "`local_window` must be .* at most 2147483647"),
        (
            {"localness_window": "fixed", "localness_window_size": 1e300},
            "`localness_window_size` must be .* at most 2147483647, got 1e",
        ),
        (
            {"encoder_locality": [{"gaussian": {"width": "fixed", "size": 10**400}}]},
            r"gaussian.size` must be .* to 2147483647",
        ),
        ({"encoder_locality": [{"local_hard": 1e300}]}, r"local_hard` must be .* to 2147483647, got"),
        ({"encoder_locality": [{"cnn": {"layers": 10**7}}]}, r"cnn.layers` must be .* from 1 to 1000, got 10000000"),
    ],
)
def test_numbers_beyond_any_sentence_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        CsanConfig(encoder_layers=1, **fields)


def test_what_is_loaded_with_overrides_is_checked_as_everything_else(tmp_path) -> None:
    long, short = tmp_path / "long", tmp_path / "short"
    CsanConfig(encoder_layers=1, encoder_locality=[{"window": 5}]).save_pretrained(long)
    CsanConfig().save_pretrained(short)
    for directory, field, value in [
        (long, "local_window", 5),
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
        edited = {**CsanConfig.from_pretrained(directory).to_dict(), name: value}
        with pytest.raises(ValueError, match=f"`{name}`"):
            CsanConfig.from_dict(edited)
    loaded, unused = CsanConfig.from_pretrained(short, local_window=5, unheard_of=1, return_unused_kwargs=True)
    assert (loaded.local_window, unused) == (5, {"unheard_of": 1})
    loaded.local_window = 6
    with pytest.raises(ValueError, match="`local_window`"):
        loaded.save_pretrained(tmp_path / "again")


def test_short_form_beside_a_preset_composes() -> None:
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
    config = CsanConfig.preset("bi_direct", head_area=3, head_boundary="circular", localness_layers=[5])
    area = {"head_area": {"size": 3, "boundary": "circular"}}
    assert config.specifications("encoder") == [None] * 5 + [{"bi_direct": True, **area}]
    config = CsanConfig.preset("bi_direct", local_window=11, decoder_localness_layers=[0])
    assert config.specifications("decoder")[0] == {"window": 11}
    shared = {"relative_positions": {"max_distance": 16, "per_head": False}}  # as an area of heads has one softmax
    area = {"head_area": {"size": 3, "boundary": "mask"}}
    assert CsanConfig.preset("rel_pos", head_area=3).specifications("encoder")[0] == {**shared, **area}
    with pytest.raises(ValueError, match="`head_boundary`"):
        CsanConfig.preset("rel_pos", head_boundary="circular", encoder_locality=[{"window": 5}] * 6)
