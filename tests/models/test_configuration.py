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


@pytest.mark.parametrize(
    ("field", "value", "options"),
    [
        ("local_window", 10, {}),
        ("local_window", 0, {}),
        ("local_window", -3, {}),
        ("local_window", "11", {}),
        ("local_window", True, {}),
        ("head_area", 2, {}),
        ("head_area", 0, {}),
        ("head_area", 17, {}),
        ("head_area", 9, {"head_boundary": "circular"}),
        ("head_boundary", "wrap", {}),
        ("localness_window", "soft", {}),
        ("localness_window_size", 0.0, {"localness_window": "fixed"}),
        ("localness_layers", [6], {}),
        ("localness_layers", [-1], {}),
        ("localness_layers", [1, 1], {}),
        ("localness_layers", 2, {}),
        ("decoder_localness_layers", [6], {}),
        ("cross_localness_layers", [0], {}),
        ("cross_localness_layers", [9], {"localness_window": "query"}),
        ("d_model", 500, {}),
        ("encoder_layers", 0, {}),
        ("dropout", 1.5, {}),
        ("vocab_size", 0, {}),
        ("decoder_vocab_size", 7, {}),
        ("pad_token_id", -1, {}),
        ("initialization", "magic", {}),
    ],
)
def test_refused_naming_field_and_value(field: str, value: object, options: dict) -> None:
    with pytest.raises(ValueError, match=field) as error:
        CsanConfig(**{field: value}, **options)
    shown = str(value[0] if isinstance(value, list) else value)
    assert shown in str(error.value)


def test_largest_area_is_allowed() -> None:
    assert CsanConfig(head_area=15).head_area == 15  # 2H - 1 with 8 heads
    assert CsanConfig(head_area=7, head_boundary="circular").head_area == 7


def test_round_trip_through_json(tmp_path) -> None:
    config = CsanConfig(
        vocab_size=40,
        decoder_vocab_size=50,
        share_encoder_decoder_embeddings=False,
        localness_window="layer",
        localness_layers=[2, 0],
        cross_localness_layers=[1],
    )
    config.save_pretrained(tmp_path)
    loaded = CsanConfig.from_pretrained(tmp_path)
    assert loaded.to_dict() == config.to_dict()
    assert loaded.local_layers("encoder") == [0, 2]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"local_window": 10**40 + 1}, "`local_window` must be at most 2147483647 tokens"),
        ({"localness_window": "fixed", "localness_window_size": 1e300}, "`localness_window_size` must be at most"),
        ({"encoder_locality": [{"window": 2**63 + 1}]}, r"`encoder_locality\[0\].window` must be at most"),
        ({"encoder_locality": [{"gaussian": {"width": "fixed", "size": 10**400}}]}, r"gaussian.size` must be at most"),
        ({"encoder_locality": [{"local_hard": 1e300}]}, r"local_hard` must be at most"),
        ({"encoder_locality": [{"relative_positions": 10**30}]}, r"relative_positions` must be at most"),
        ({"encoder_locality": [{"block": 10**30}]}, r"block.length` must be at most"),
        ({"encoder_locality": [{"cnn": {"kernel_size": 10**30 + 1}}]}, r"cnn.kernel_size` must be at most"),
        ({"encoder_locality": [{"cnn": {"layers": 10**7}}]}, r"cnn.layers` must be .* from 1 to 1000, got 10000000"),
    ],
)
def test_numbers_beyond_any_sentence_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        CsanConfig(encoder_layers=1, **fields)
