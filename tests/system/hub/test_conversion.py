# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Marian, M2M100, NLLB, BART and mBART models as CSANs, and CSANs as Marian's."""

import dataclasses

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MBartConfig,
    MBartForConditionalGeneration,
    NllbTokenizer,
    pipeline,
)

from csan_hf import CsanConfig, CsanForConditionalGeneration
from csan_hf.hub import convert_bart, convert_m2m100, convert_marian, to_marian
from csan_hf.pipelines import TASK, register, translation_pipeline
from csan_hf_runtime.command_line import main

register()
SEPARATE = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 23}
VARIANTS = {
    "plain": {},
    "unscaled": {"scale_embedding": False},
    "separate": SEPARATE,
    "separate untied": {**SEPARATE, "tie_word_embeddings": False},
    "gelu": {"activation_function": "gelu"},
    "uneven": {"decoder_layers": 1, "decoder_ffn_dim": 24, "decoder_attention_heads": 2},
    "hub ids": {
        "pad_token_id": 30,
        "decoder_start_token_id": 30,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
    },
    "ignored size": {"decoder_vocab_size": 99},
    "settings": {
        "activation_function": "relu",
        "dropout": 0.31,
        "attention_dropout": 0.07,
        "activation_dropout": 0.05,
        "encoder_layerdrop": 0.2,
        "decoder_layerdrop": 0.3,
        "max_position_embeddings": 47,
        "init_std": 0.11,
    },
}
SIZES = {**tiny.transformer_sizes(16, layers=2, heads=4, ffn=32), "vocab_size": 31, "init_std": 0.3}
IDS = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "forced_eos_token_id": 1}


def build_marian(**overrides):
    fields = {"max_position_embeddings": 40, "activation_function": "swish"}
    fields |= {"scale_embedding": True, **IDS}
    return build(MarianMTModel, MarianConfig, **fields | overrides)


def build_m2m100(**overrides):
    fields = {"max_position_embeddings": 20, **overrides}
    return build(M2M100ForConditionalGeneration, M2M100Config, **fields)


def build(model_class, config_class, **fields):
    """A model whose biases and norms are not zeros and ones."""
    torch.manual_seed(0)
    model = model_class(config_class(**{**SIZES, **fields})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bias" in name or "layer_norm" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
        if model_class is MarianMTModel:
            model.final_logits_bias.normal_()
    return model


def sources_for(model, length=9):
    """Three sources, two of them padded."""
    torch.manual_seed(1)
    mask = tiny.mask_of((length, 4, 1))
    ids = torch.randint(4, 20, (3, length)) * mask + model.config.pad_token_id * (1 - mask)
    return {"input_ids": ids, "attention_mask": mask}


def inputs_for(model, length=9):
    """Sources and targets."""
    sources = sources_for(model, length)
    return {**sources, "decoder_input_ids": torch.randint(4, 20, (3, length - 2))}


def assert_same(model, converted, length=9, **options):
    inputs = inputs_for(model, length)
    with torch.no_grad():
        assert_close(converted(**inputs).logits, model(**inputs).logits, atol=1e-5, rtol=1e-5)
    options |= {**sources_for(model, length), "max_new_tokens": length + 3}
    for search in ({}, {"num_beams": 4, "num_return_sequences": 2}):
        translations = converted.generate(**options, **search)
        assert torch.equal(translations, model.generate(**options, **search))


@pytest.mark.parametrize("overrides", VARIANTS.values(), ids=VARIANTS.keys())
def test_marian_and_back(overrides, tmp_path):
    marian = build_marian(**overrides)
    marian.generation_config.update(num_beams=6, bad_words_ids=[[0]])
    csan = convert_marian(marian)
    assert_same(marian, csan)
    marian.save_pretrained(tmp_path)
    from_disk = convert_marian(tmp_path)
    assert_same(marian, from_disk)
    assert from_disk.config.name_or_path == str(tmp_path)
    assert from_disk.name_or_path == "", "the base that an adapter would name"
    back = to_marian(csan)
    assert_close(back.state_dict(), marian.state_dict(), rtol=0, atol=0)
    unlike = {"architectures", "decoder_vocab_size", "dtype", "transformers_version"}
    names = {field.name for field in dataclasses.fields(MarianConfig)} - unlike
    for model in (csan, back):
        assert model.generation_config.to_dict() == marian.generation_config.to_dict()
        assert model.generation_config is not marian.generation_config
        for name in names:
            assert getattr(model.config, name) == getattr(marian.config, name), name


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"scale_embedding": False, "activation_function": "gelu"},
        {"d_model": 20, "pad_token_id": 3},
    ],
)
def test_m2m100(overrides, tmp_path):
    """Beyond the table of positions, too, which M2M100 extends."""
    model = build_m2m100(**overrides)
    csan = convert_m2m100(model)
    assert csan.num_parameters() == model.num_parameters()
    model.save_pretrained(tmp_path)
    assert_same(model, convert_m2m100(tmp_path), length=27, forced_bos_token_id=7)
    options = {**sources_for(model), "max_new_tokens": 9}
    static = csan.generate(**options, cache_implementation="static")
    assert torch.equal(static, model.generate(**options))


@pytest.mark.parametrize("overrides", [{}, {"scale_embedding": True, "encoder_layers": 1}])
@pytest.mark.parametrize(
    ("model_class", "config_class"),
    [(BartForConditionalGeneration, BartConfig), (MBartForConditionalGeneration, MBartConfig)],
)
def test_bart_and_mbart(model_class, config_class, overrides, tmp_path):
    """With learned positions, of which BART keeps two that no token has."""
    model = build(model_class, config_class, max_position_embeddings=20, **overrides)
    csan = convert_bart(model)
    assert csan.num_parameters() == model.num_parameters() - 4 * model.config.d_model
    model.save_pretrained(tmp_path / "bart")
    assert run_script(tmp_path / "bart", tmp_path / "csan") == 0
    for converted in (csan, CsanForConditionalGeneration.from_pretrained(tmp_path / "csan")):
        assert_same(model, converted, decoder_start_token_id=2)
    options = {**sources_for(model), "max_new_tokens": 9, "decoder_start_token_id": 2}
    static = csan.generate(**options, cache_implementation="static")
    assert torch.equal(static, model.generate(**options))
    csan.train()(**inputs_for(model)).logits.sum().backward()
    assert csan.model.encoder.embed_positions.weight.grad.any()
    with pytest.raises(
        ValueError, match="21 tokens are more than the 20 learned positions; split the text"
    ):
        csan(**inputs_for(model, length=21))


def test_what_pipelines_read_of_a_config_goes_along():
    model = build(BartForConditionalGeneration, BartConfig, decoder_start_token_id=0)
    model.config.prefix = "translate: "
    converted = convert_bart(model).config
    assert (converted.prefix, converted.decoder_start_token_id) == ("translate: ", 0)


@pytest.mark.parametrize("scaled", [True, False])
@torch.no_grad()
def test_ready_made_embeddings_count_as_in_marian(scaled):
    """They are taken as given, and those of the embedding layer are the tokens' own."""
    marian = build_marian(scale_embedding=scaled)
    csan = convert_marian(marian)
    inputs = inputs_for(marian)
    expected = csan(**inputs).logits
    ids = inputs.pop("input_ids")
    inputs["inputs_embeds"] = torch.randn(*ids.shape, marian.config.d_model)
    assert_close(csan(**inputs).logits, marian(**inputs).logits, atol=1e-5, rtol=1e-5)
    inputs["inputs_embeds"] = csan.get_input_embeddings()(ids)
    assert_close(csan(**inputs).logits, expected, atol=1e-6, rtol=0)


def test_weights_are_copies_and_a_gaussian_is_new():
    marian = build_marian().bfloat16()
    csan = convert_marian(marian, localness_window="query", localness_layers=[1])
    assert csan.dtype == torch.bfloat16
    assert not csan.training
    expected = {name: tensor.clone() for name, tensor in marian.state_dict().items()}
    assert torch.equal(csan.state_dict()["model.shared.weight"], expected["model.shared.weight"])
    assert (new := csan.state_dict().keys() - expected.keys())
    assert all("encoder.layers.1.self_attn.localness" in name for name in new)
    with torch.no_grad():
        for parameter in csan.parameters():
            parameter.zero_()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in marian.state_dict().items())


OFF = {"local_window": None, "head_area": 1, "localness_layers": []}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"local_window": 11, "localness_layers": [1]},
            r"local encoder layers=\[\], but this CSAN has \[1\]",
        ),
        (
            {"decoder_locality": [{"window": 3}, None]},
            r"local decoder layers=\[\], but this CSAN has \[0\]",
        ),
        ({"cross_localness_layers": [0], "localness_window": "query"}, "local cross"),
        ({"normalize_before": True}, "normalize_before=False, but this CSAN has True"),
        ({"sinusoids": "m2m_100"}, "position_embeddings='sinusoidal', but this CSAN has 'm2m_100'"),
    ],
)
def test_to_marian_refuses_by_name_what_marian_cannot_do(fields, message):
    model = CsanForConditionalGeneration(CsanConfig(**SIZES, **OFF | fields))
    with pytest.raises(ValueError, match=message):
        to_marian(model)


def with_an_adapter(marian):
    marian.model.encoder.layers[0].adapter = torch.nn.Linear(2, 2)
    del marian.model.decoder.layers[1].fc1


def with_learned_positions(marian):
    marian.model.encoder.embed_positions.weight.data[3] += 0.1


@pytest.mark.parametrize(
    ("options", "change", "message"),
    [
        (
            {},
            with_an_adapter,
            r"CsanForConditionalGeneration cannot represent this MarianMTModel: weights missing: "
            r"model\.decoder\.layers\.1\.fc1\.bias, .*\.fc1\.weight; "
            r"weights left over: model\.encoder\.layers\.0\.adapter\.bias, .*\.adapter\.weight$",
        ),
        ({}, with_learned_positions, r"left over: model\.encoder\.embed_positions\.weight"),
        ({"tie_word_embeddings": False}, id, r"tied: .*embed_tokens"),
    ],
)
def test_weights_that_csan_cannot_represent_are_refused_by_name(options, change, message):
    marian = build_marian(**options)
    change(marian)
    with pytest.raises(ValueError, match=message):
        convert_marian(marian)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"local_windw": 3}, r"'local_windw'.*'local_window'"),
        ({"local_window": 4}, "local_window"),
        ({"encoder_ffn_dim": 24}, r"size mismatch for model.encoder.layers.0.fc1.weight"),
        (
            {"encoder_locality": [None, {"block": 4}]},
            r"weights left over: model.encoder.layers.1.self_attn",
        ),
    ],
)
def test_wrong_fields_are_refused(fields, message):
    with pytest.raises((ValueError, RuntimeError), match=message):
        convert_marian(build_marian(), **fields)


@pytest.mark.parametrize("convert", [convert_marian, convert_m2m100])
def test_a_checkpoint_of_another_family_is_refused(convert, tmp_path):
    bart = BartConfig(vocab_size=9, d_model=16, encoder_layers=1, decoder_layers=1)
    BartForConditionalGeneration(bart).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="is a model of type 'bart', not 'm"):
        convert(tmp_path)


def run_script(*arguments):
    return main(["convert", *map(str, arguments)])


def test_script(tmp_path, capsys):
    build_marian().save_pretrained(tmp_path / "marian")
    options = ["--encoder_locality", "[{window: 3, head_area: 3}, null]", "--dropout=0.25"]
    options += ["--cross_localness_layers", "1", "--localness_window", "query"]
    options += ["--decoder_localness_layers", "0", "1"]
    assert run_script(tmp_path / "marian", tmp_path / "csan", *options) == 0
    assert "no tokenizer" in capsys.readouterr().err
    expected = {
        "encoder_locality": [{"window": 3, "head_area": 3}, None],
        "dropout": 0.25,
        "decoder_locality": [{"gaussian": "query"}] * 2,
        "cross_locality": [None, {"gaussian": "query"}],
    }
    config = CsanForConditionalGeneration.from_pretrained(tmp_path / "csan").config
    assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["marian"], "is not empty"),
        (["none", "--local_windw", "3"], "Did you mean 'local_window'"),
        (["none", "--local_window", "3", "5"], "got [3, 5]"),
        (["none", "3"], "unrecognized arguments: 3"),
    ],
)
def test_wrong_arguments_of_the_script_are_one_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    build_marian().save_pretrained("marian")
    assert run_script("marian", *words) == 2
    assert message in capsys.readouterr().err


def test_an_adapter_alone_is_no_model_to_convert(tmp_path, capsys):
    (tmp_path / "adapter_config.json").write_text("{}")
    assert run_script(tmp_path, tmp_path / "csan") == 2
    assert "it has no config.json of a model: save an adapter's" in capsys.readouterr().err


def test_script_takes_two_tokenizers_along(separate, tmp_path):
    pair = separate[1]
    sizes = {"vocab_size": len(pair.source), "decoder_vocab_size": len(pair.target)}
    build_marian(**sizes, share_encoder_decoder_embeddings=False).save_pretrained(
        tmp_path / "marian"
    )
    pair.save_pretrained(tmp_path / "marian")
    assert run_script(tmp_path / "marian", tmp_path / "csan") == 0
    pipe = pipeline(TASK, model=str(tmp_path / "csan"), device="cpu")
    assert (len(pipe.tokenizer), len(pipe.target_tokenizer)) == (len(pair.source), len(pair.target))


def test_script_takes_the_languages_along(tmp_path, monkeypatch):
    """From an NLLB checkpoint to a CSAN that loads by its folder and translates between the same
    languages.
    """
    vocabulary = {
        piece: number
        for number, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *"▁abcdefghij"])
    }
    tokenizer = NllbTokenizer(
        vocab=vocabulary, merges=[], extra_special_tokens=["eng_Latn", "deu_Latn"]
    )
    model = build_m2m100(vocab_size=len(tokenizer))
    model.save_pretrained(tmp_path / "nllb")
    tokenizer.save_pretrained(tmp_path / "nllb")
    assert run_script(tmp_path / "nllb", tmp_path / "csan") == 0
    languages = {
        "src_lang": "deu_Latn",
        "tgt_lang": "eng_Latn",
        "max_new_tokens": 8,
        "device": "cpu",
    }
    expected = translation_pipeline(model, tokenizer=tokenizer, **languages)("ab cd")
    assert translation_pipeline(tmp_path / "csan", **languages)("ab cd") == expected
    # as it is without csan_hf: the pipeline that the checkpoint brings
    monkeypatch.setattr("csan_hf.models.translation.TranslationPipeline.for_texts", None)
    brought = pipeline(
        "translation", model=str(tmp_path / "csan"), trust_remote_code=True, **languages
    )
    assert type(brought).__module__.startswith("transformers_modules")
    assert brought("ab cd") == expected


def save_marian_with(name, weight, directory):
    model = build_marian()
    model.save_pretrained(directory)
    weights = load_file(directory / "model.safetensors") | {name: weight}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return model


@pytest.mark.parametrize(
    ("name", "weight", "told"),
    [
        (
            "final_logits_bias",
            torch.zeros(1, 32),
            "has mismatched keys: [('final_logits_bias', ",
        ),
        ("another", torch.zeros(1), "has unexpected keys: ['another']"),
    ],
)
def test_weights_that_do_not_fit_the_config_are_named(name, weight, told, tmp_path, capsys):
    save_marian_with(name, weight, tmp_path)
    assert run_script(tmp_path, tmp_path / "csan") == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "csan").exists()


def test_what_files_of_earlier_versions_hold_besides_is_left_out(tmp_path):
    """Such as positions, which transformers leaves out, too."""
    marian = save_marian_with("model.encoder.embed_positions.weights", torch.zeros(9, 8), tmp_path)
    converted = convert_marian(tmp_path)
    assert_close(
        dict(converted.state_dict()), dict(convert_marian(marian).state_dict()), rtol=0, atol=0
    )


@pytest.mark.parametrize("content", ["half", "pointer", "pickle"])
def test_damaged_or_unsafe_weights_are_refused(content, tmp_path, capsys):
    build_marian().save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    if content == "half":
        weights.write_bytes(weights.read_bytes()[:5000])
    elif content == "pointer":
        weights.write_text("version https://git-lfs.github.com/spec/v1")
    else:
        weights.unlink()
        torch.save({"weights": torch.nn.Linear(1, 1)}, tmp_path / "pytorch_model.bin")
    assert run_script(tmp_path, tmp_path / "csan") == 2
    assert f"The weights in {tmp_path} are damaged, incomplete or" in capsys.readouterr().err
