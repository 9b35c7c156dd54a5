# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""save_pretrained and from_pretrained: bitwise, tied weights once, devices, other embeddings."""

import re
import tokenize

import pytest
import torch
from families import FAMILIES, assert_same, every_family, logits_of
from safetensors.torch import load_file
from torch.testing import assert_close
from transformers import AutoConfig, AutoModelForSeq2SeqLM

from csan_hf import CsanConfig, CsanForConditionalGeneration
from csan_hf.hub.public_files import read_json

UNTIED = {"tie_word_embeddings": False}
EMBEDDINGS = ["model.decoder.embed_tokens.weight", "model.encoder.embed_tokens.weight"]
# Options of a family, and the big tables that a checkpoint holds: of the tied ones, one
VARIANTS = {
    "one vocabulary": (lambda family: family.shared, ["model.shared.weight"]),
    "separate vocabularies": (lambda family: family.separate, EMBEDDINGS),
    "separate and untied": (
        lambda family: {**family.separate, **UNTIED},
        ["lm_head.weight", *EMBEDDINGS],
    ),
    "one vocabulary, untied": (
        lambda family: {**family.shared, **UNTIED},
        ["lm_head.weight", "model.shared.weight"],
    ),
}


@every_family
@pytest.mark.parametrize(("options", "expected"), VARIANTS.values(), ids=VARIANTS)
def test_save_and_load_is_bitwise(family, options, expected, tmp_path):
    model = family.tiny_model(seed=1, **options(family))
    model.save_pretrained(tmp_path)
    loaded, info = family.model_class.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    assert not loaded.training
    assert len([*loaded.parameters()]) == len([*model.parameters()]), "as many are tied"
    weights = load_file(tmp_path / "model.safetensors")
    tables = [name for name in weights if re.search("embed_tokens|shared|lm_head.weight", name)]
    assert sorted(tables) == expected, "tied ones once"
    saved = read_json(tmp_path / "config.json")
    config = loaded.config.to_dict()
    assert {name: config[name] for name in saved} == saved
    assert_same(model, loaded)
    assert_same(model, AutoModelForSeq2SeqLM.from_pretrained(tmp_path))
    config = AutoConfig.from_pretrained(tmp_path)
    assert type(AutoModelForSeq2SeqLM.from_config(config)) is family.model_class


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("csan", {}),
        ("csan", {"sinusoids": "m2m_100"}),
        ("csan", {"sinusoids": "bart"}),
        ("pervasive attention", {"position_embeddings": "sinusoidal"}),
    ],
)
def test_a_model_made_on_the_meta_device_gets_its_positions_back(family, options):
    """A state dict does not hold the sinusoids, and `to_empty` leaves any memory in their place."""
    model = FAMILIES[family].tiny_model(seed=1, **options)
    with torch.device("meta"):
        loaded = FAMILIES[family].tiny_model(**options)
    loaded.to_empty(device="cpu")
    for tensor in (*loaded.parameters(), *loaded.buffers()):
        if tensor.is_floating_point():
            tensor.data.fill_(torch.nan)
    loaded.load_state_dict(model.state_dict())
    assert_same(model, loaded.eval())


def test_learned_positions_outlast_the_loading_of_some_weights():
    """As peft loads an adapter."""
    model = FAMILIES["csan"].tiny_model(position_embeddings="learned")
    positions = model.get_encoder().embed_positions.weight
    positions.data += 1
    expected = positions.clone()
    model.load_state_dict({}, strict=False)
    assert torch.equal(positions, expected)


@every_family
def test_a_device_map_that_offloads_to_disk(family, tmp_path):
    """Only Pervasive Attention rounds otherwise, led from its fused computation."""
    model = family.tiny_model(seed=1, **family.separate)
    model.save_pretrained(tmp_path / "model")
    device_map = {"model.encoder": "disk", "model.decoder": "cpu", "lm_head": "cpu"}
    if hasattr(model, "final_logits_bias"):
        device_map["final_logits_bias"] = "cpu"
    loaded = family.model_class.from_pretrained(
        tmp_path / "model", device_map=device_map, offload_folder=tmp_path / "offload"
    )
    if hasattr(model, "final_logits_bias"):  # CSAN
        assert torch.equal(logits_of(loaded), logits_of(model))
    assert_close(logits_of(loaded), logits_of(model), rtol=1e-5, atol=1e-5)


@every_family
def test_resizing_either_side_of_a_shared_vocabulary_resizes_it(family):
    model = family.tiny_model(**{**family.shared, **UNTIED})
    model.resize_decoder_token_embeddings(60)
    assert model.config.vocab_size == model.config.decoder_vocab_size == 60
    assert model.get_input_embeddings().num_embeddings == model.lm_head.out_features == 60


@every_family
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_resizing_separate_vocabularies(family, tied, tmp_path):
    model = family.tiny_model(seed=1, **{**family.separate, "tie_word_embeddings": tied})
    before = logits_of(model)
    model.resize_token_embeddings(61)
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (61, before.shape[-1])
    model.resize_decoder_token_embeddings(67)
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (61, 67)
    assert (model.lm_head.weight is model.get_decoder().embed_tokens.weight) == tied
    assert_close(logits_of(model)[..., : before.shape[-1]], before, rtol=0, atol=1e-5)
    model.save_pretrained(tmp_path)
    assert_same(model, family.model_class.from_pretrained(tmp_path))


@pytest.mark.parametrize(
    ("family", "files", "tokens"),
    [
        ("csan", 15, 28_940),
        ("pervasive attention", 11, 19_520),
        ("rnnsearch", 7, 11_450),
        ("conv_s2s", 7, 11_120),
    ],
)
def test_a_checkpoint_is_read_by_strangers(family, files, tokens, tmp_path):
    """Whoever loads it with `trust_remote_code=True` is asked to trust its code, and so has to read it."""
    FAMILIES[family].tiny_model().save_pretrained(tmp_path)
    check_code(tmp_path, files, tokens)


def test_a_checkpoint_carries_the_locality_methods_that_it_uses(tmp_path):
    config = CsanConfig.preset("lines", d_model=32, vocab_size=50, encoder_layers=1)
    CsanForConditionalGeneration(config).save_pretrained(tmp_path)
    assert not (tmp_path / "sublayers.py").exists()
    check_code(tmp_path, 16, 30_180)


def check_code(folder, files, tokens):
    """Bounds of the files of code in a folder, and of their tokens."""
    code = {path.name: count_tokens(path) for path in folder.glob("*.py")}
    assert len(code) <= files, code
    assert sum(code.values()) <= tokens, code


LAYOUT = (
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
)


def count_tokens(path):
    """Tokens of Python in a file, without comments, docstrings and layout."""
    with path.open("rb") as file:
        tokens = [
            token for token in tokenize.tokenize(file.readline) if token.type != tokenize.COMMENT
        ]
    if hasattr(tokenize, "FSTRING_START"):  # from Python 3.12 on, of which an f-string is several
        tokens = strings_whole(tokens)
    count = 0
    for before, token, after in zip([None, *tokens[:-1]], tokens, [*tokens[1:], None], strict=True):
        stands_alone = before is None or before.type in LAYOUT
        is_docstring = (
            token.type == tokenize.STRING and stands_alone and after.type == tokenize.NEWLINE
        )
        count += token.type not in LAYOUT and not is_docstring
    return count


def strings_whole(tokens):
    """The tokens with each f-string as its first one."""
    depth = 0
    whole = []
    for token in tokens:
        if depth == 0:
            whole.append(token)
        depth += (token.type == tokenize.FSTRING_START) - (token.type == tokenize.FSTRING_END)
    return whole
