# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
import dataclasses
import json

import pytest
import tiny
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    pipeline,
)

import csan_hf_cli
from csan_hf import CsanConfig, CsanForConditionalGeneration
from csan_hf.hub import convert_marian, to_marian
from csan_hf.pipelines import TASK, register

register()
SEPARATE = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 23}
VARIANTS = {
    "plain": {},
    "unscaled": {"scale_embedding": False},
    "separate": SEPARATE,
    "separate untied": {**SEPARATE, "tie_word_embeddings": False},
    "gelu": {"activation_function": "gelu"},
    "relu": {"activation_function": "relu"},
    "uneven": {"decoder_layers": 1, "decoder_ffn_dim": 24, "decoder_attention_heads": 2},
    "hub ids": {"pad_token_id": 30, "decoder_start_token_id": 30, "eos_token_id": 0, "forced_eos_token_id": 0},
    "ignored size": {"decoder_vocab_size": 99},
}


def build_marian(**overrides):
    torch.manual_seed(0)
    fields = {
        "vocab_size": 31,
        "d_model": 16,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "max_position_embeddings": 40,
        "activation_function": "swish",
        "scale_embedding": True,
        "init_std": 0.3,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
        "forced_eos_token_id": 1,
        **overrides,
    }
    model = MarianMTModel(MarianConfig(**fields)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bias" in name or "layer_norm" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
        model.final_logits_bias.normal_()
    return model


def inputs_for(model):
    """Three sources, two of them padded, and targets of five tokens."""
    torch.manual_seed(1)
    config = model.config
    lengths = torch.tensor([9, 4, 1])
    attention_mask = (torch.arange(9) < lengths[:, None]).long()
    input_ids = torch.randint(3, 20, (3, 9)) * attention_mask + config.pad_token_id * (1 - attention_mask)
    decoder_input_ids = torch.randint(3, 20, (3, 5))
    return {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "decoder_input_ids": decoder_input_ids,
    }


def assert_same(marian, csan):
    inputs = inputs_for(marian)
    with torch.no_grad():
        expected, actual = marian(**inputs).logits, csan(**inputs).logits
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    del inputs["decoder_input_ids"]
    for options in ({"num_beams": 1}, {"num_beams": 4, "num_return_sequences": 2}):
        expected = marian.generate(**inputs, max_new_tokens=12, **options)
        assert torch.equal(csan.generate(**inputs, max_new_tokens=12, **options), expected)


@pytest.mark.parametrize("overrides", VARIANTS.values(), ids=VARIANTS.keys())
def test_locality_off_computes_what_marian_computes(overrides, tmp_path):
    marian = build_marian(**overrides)
    csan = convert_marian(marian)
    assert_same(marian, csan)
    csan.save_pretrained(tmp_path / "csan")
    assert_same(marian, CsanForConditionalGeneration.from_pretrained(tmp_path / "csan"))
    marian.save_pretrained(tmp_path / "marian")
    from_disk = convert_marian(tmp_path / "marian")
    assert_same(marian, from_disk)
    assert from_disk.name_or_path == str(tmp_path / "marian")


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
    torch.testing.assert_close(csan(**inputs).logits, marian(**inputs).logits, atol=1e-5, rtol=1e-5)
    inputs["inputs_embeds"] = csan.get_input_embeddings()(ids)
    torch.testing.assert_close(csan(**inputs).logits, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("window", "area"), [(3, 1), (None, 3), (5, 3)], ids=["window", "area", "window and area"])
def test_locality_adds_no_parameters_and_changes_the_result(window, area):
    marian = build_marian()
    csan = convert_marian(marian, local_window=window, head_area=area, localness_layers=[0])
    assert (csan.config.local_window, csan.config.head_area, csan.config.localness_layers) == (window, area, [0])
    positions = 2 * marian.model.encoder.embed_positions.weight.numel()  # which Marian counts as parameters
    assert csan.num_parameters() == marian.num_parameters() - positions
    assert csan.num_parameters() == convert_marian(marian).num_parameters()
    inputs = inputs_for(marian)
    with torch.no_grad():
        assert (csan(**inputs).logits - marian(**inputs).logits).abs().max() > 1e-3


def test_converted_model_trains_and_leaves_marian_alone():
    marian = build_marian()
    before = {name: tensor.clone() for name, tensor in marian.state_dict().items()}
    csan = convert_marian(marian, local_window=3, head_area=3, dropout=0.0)
    assert not csan.training
    inputs = inputs_for(marian)
    labels = inputs.pop("decoder_input_ids")
    optimizer = torch.optim.Adam(csan.parameters(), lr=0.01)
    losses = []
    for _ in range(5):
        loss = csan(**inputs, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(torch.equal(tensor, before[name]) for name, tensor in marian.state_dict().items())


def test_every_setting_is_carried_over():
    values = {
        "dropout": 0.31,
        "attention_dropout": 0.07,
        "activation_dropout": 0.05,
        "encoder_layerdrop": 0.2,
        "decoder_layerdrop": 0.3,
        "max_position_embeddings": 47,
        "use_cache": False,
        "init_std": 0.11,
    }
    marian = build_marian(**values)
    marian.generation_config.update(num_beams=6, max_length=17, bad_words_ids=[[0]])
    csan = convert_marian(marian)
    names = {field.name for field in dataclasses.fields(MarianConfig)}
    assert names <= {field.name for field in dataclasses.fields(CsanConfig)}
    skipped = {"architectures", "dtype", "transformers_version"}
    assert {n: getattr(csan.config, n) for n in names - skipped} == {
        n: getattr(marian.config, n) for n in names - skipped
    }
    assert csan.generation_config.to_dict() == marian.generation_config.to_dict()
    assert csan.generation_config is not marian.generation_config


@pytest.mark.parametrize("overrides", VARIANTS.values(), ids=VARIANTS.keys())
def test_to_marian_and_back(overrides):
    marian = build_marian(**overrides)
    csan = convert_marian(marian)
    back = to_marian(csan)
    assert_same(back, csan)
    expected = marian.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in back.state_dict().items())
    assert back.state_dict().keys() == expected.keys()
    assert back.generation_config.to_dict() == marian.generation_config.to_dict()
    names = {field.name for field in dataclasses.fields(MarianConfig)} - {"decoder_vocab_size"}
    assert {name: getattr(back.config, name) for name in names} == {
        name: getattr(marian.config, name) for name in names
    }


def test_to_marian_refuses_by_name_what_marian_cannot_do():
    fields = {"vocab_size": 31, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 8}
    fields |= {"decoder_ffn_dim": 8, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    off = {"local_window": None, "head_area": 1}
    for overrides, message in (
        ({"localness_layers": [1]}, r"local encoder layers=\[\], but this CSAN has \[1\]"),
        ({**off, "decoder_locality": [{"window": 3}, None]}, r"local decoder layers=\[\]"),
        ({**off, "cross_localness_layers": [0], "localness_window": "query", "localness_layers": []}, "local cross"),
        ({**off, "normalize_before": True}, "normalize_before=False, but this CSAN has True"),
        ({**off, "sinusoids": "m2m_100"}, "sinusoids='marian', but this CSAN has 'm2m_100'"),
    ):
        with pytest.raises(ValueError, match=message):
            to_marian(CsanForConditionalGeneration(CsanConfig(**fields, **overrides)))


def test_ctranslate2_translates_a_csan_as_transformers_does(tmp_path):
    """Through `to_marian` and CTranslate2's own converter; its vocabulary ends with "<pad>", as Marian's do."""
    import ctranslate2
    from ctranslate2.converters import TransformersConverter

    words = [f"w{number}" for number in range(26)]
    tokenizer = tiny.tokenizer([*words, "<pad>"], special=("</s>", "<unk>"))
    pad = tokenizer.pad_token_id
    ids = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0, "forced_eos_token_id": None}
    csan = convert_marian(build_marian(vocab_size=len(tokenizer), **ids))
    # Marian never generates padding; CTranslate2 leaves it out of the vocabulary
    csan.final_logits_bias[:, pad] = -100.0
    to_marian(csan).save_pretrained(tmp_path / "marian")
    tokenizer.save_pretrained(tmp_path / "marian")
    TransformersConverter(str(tmp_path / "marian")).convert(str(tmp_path / "ctranslate2"))
    translator = ctranslate2.Translator(str(tmp_path / "ctranslate2"), device="cpu", intra_threads=1)
    sentences = ["w3 w4 w5 w6", "w9", "w1 w2 w1 w2 w1 w20"]
    for beams in (1, 3):
        encoded = tokenizer(sentences, padding=True, return_tensors="pt")
        expected = csan.generate(**encoded, num_beams=beams, max_new_tokens=12)
        expected = tokenizer.batch_decode(expected, skip_special_tokens=True)
        assert len(set(expected)) > 1, "the test needs translations that differ"
        tokens = [tokenizer.convert_ids_to_tokens(tokenizer(sentence)["input_ids"]) for sentence in sentences]
        results = translator.translate_batch(tokens, beam_size=beams, max_decoding_length=12)
        assert [" ".join(result.hypotheses[0]) for result in results] == expected


def test_data_type_is_kept():
    assert convert_marian(build_marian().bfloat16()).dtype == torch.bfloat16


def test_a_gaussian_is_new_and_the_rest_converted():
    marian = build_marian()
    csan = convert_marian(marian, localness_window="query", localness_layers=[1])
    expected = marian.state_dict()
    assert torch.equal(csan.state_dict()["model.shared.weight"], expected["model.shared.weight"])
    new = csan.state_dict().keys() - expected.keys()
    assert new
    assert all("encoder.layers.1.self_attn.localness" in name for name in new)


def test_learned_positions_are_refused():
    marian = build_marian()
    with torch.no_grad():
        marian.model.encoder.embed_positions.weight[3] += 0.1
    with pytest.raises(ValueError, match=r"model\.encoder\.embed_positions\.weight"):
        convert_marian(marian)


def test_foreign_weights_are_refused_by_name():
    marian = build_marian()
    marian.model.encoder.layers[0].adapter = torch.nn.Linear(2, 2)
    del marian.model.decoder.layers[1].fc1
    with pytest.raises(ValueError, match="CsanForConditionalGeneration cannot represent this MarianMTModel") as error:
        convert_marian(marian)
    assert "missing: model.decoder.layers.1.fc1.bias, model.decoder.layers.1.fc1.weight;" in str(error.value)
    assert "left over: model.encoder.layers.0.adapter.bias, model.encoder.layers.0.adapter.w" in str(error.value)


def test_weights_that_csan_ties_are_refused_where_they_differ():
    marian = build_marian(tie_word_embeddings=False)
    with pytest.raises(ValueError, match=r"tied: .*embed_tokens"):
        convert_marian(marian)


def test_incomplete_checkpoint_is_refused_by_name(tmp_path):
    from safetensors.torch import load_file, save_file

    build_marian().save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.encoder.layers.0.fc1.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"missing keys.*model\.encoder\.layers\.0\.fc1\.weight"):
        convert_marian(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("normalize_before", True), ("normalize_embedding", True), ("static_position_embeddings", False)],
)
def test_another_architecture_is_refused(name, value):
    marian = build_marian()
    setattr(marian.config, name, value)
    with pytest.raises(ValueError, match=f"{name}={value}"):
        convert_marian(marian)


def test_wrong_arguments_are_refused(tmp_path):
    marian = build_marian()
    with pytest.raises(ValueError, match=r"'local_windw'.*'local_window'"):
        convert_marian(marian, local_windw=3)
    with pytest.raises(ValueError, match="local_window"):
        convert_marian(marian, local_window=4)
    with pytest.raises(ValueError, match=r"size mismatch for model.encoder.layers.0.fc1.weight"):
        convert_marian(marian, encoder_ffn_dim=24)
    bart = BartConfig(vocab_size=9, d_model=16, encoder_layers=1, decoder_layers=1)
    BartForConditionalGeneration(bart).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="'bart'"):
        convert_marian(tmp_path)


def run_script(*arguments):
    return csan_hf_cli.main(["convert", *map(str, arguments)])


def test_script(tmp_path, capsys):
    build_marian().save_pretrained(tmp_path / "marian")
    options = ("--local_window", "3", "--head_area", "3", "--localness_layers", "1")
    run_script(tmp_path / "marian", tmp_path / "csan", *options)
    assert "no tokenizer" in capsys.readouterr().err
    config = CsanForConditionalGeneration.from_pretrained(tmp_path / "csan").config
    assert (config.local_window, config.head_area, config.localness_layers) == (3, 3, [1])
    assert {"modeling_csan.py", "translation.py"} <= {path.name for path in (tmp_path / "csan").iterdir()}


def test_script_takes_every_field_of_the_config(tmp_path, capsys):
    build_marian().save_pretrained(tmp_path / "marian")
    options = ["--encoder_locality", "[{window: 3, head_area: 3}, null]", "--dropout=0.25"]
    assert run_script(tmp_path / "marian", tmp_path / "csan", *options, "--decoder_localness_layers", "0", "1") == 0
    config = CsanConfig.from_pretrained(tmp_path / "csan")
    assert config.encoder_locality == [{"window": 3, "head_area": 3}, None]
    assert (config.dropout, config.decoder_localness_layers) == (0.25, [0, 1])
    for words, message in (
        (["--local_windw", "3"], "Did you mean 'local_window'"),
        (["--local_window", "3", "5"], "got [3, 5]"),
        (["3"], "unrecognized arguments: 3"),
    ):
        assert run_script(tmp_path / "marian", tmp_path / "none", *words) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("vocabularies", ["joint", "separate"])
def test_script_takes_tokenizers_along(vocabularies, request, tmp_path):
    _, tokenizers = request.getfixturevalue(vocabularies)
    source, target = getattr(tokenizers, "source", tokenizers), getattr(tokenizers, "target", None)
    sizes = {"vocab_size": len(source)}
    if target is not None:
        sizes.update(decoder_vocab_size=len(target), share_encoder_decoder_embeddings=False)
    build_marian(**sizes).save_pretrained(tmp_path / "marian")
    tokenizers.save_pretrained(tmp_path / "marian")
    run_script(tmp_path / "marian", tmp_path / "csan")
    pipe = pipeline(TASK, model=str(tmp_path / "csan"), device="cpu")
    assert len(pipe.tokenizer) == len(source)
    assert len(pipe.target_tokenizer) == len(target or source)


def test_script_says_what_is_wrong(tmp_path, capsys):
    build_marian().save_pretrained(tmp_path / "marian")
    assert run_script(tmp_path / "marian", tmp_path / "csan", "--local_window", "4") == 2
    assert "local_window" in capsys.readouterr().err


def test_script_names_what_is_missing_or_damaged(tmp_path, capsys):
    folder = tmp_path / "marian"
    assert run_script(folder, tmp_path / "csan") == 2
    assert f"There is no folder {folder} to read the model from." in capsys.readouterr().err
    build_marian().save_pretrained(folder)
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"vocab_size": 31', '"vocab_size": 32'))
    assert run_script(folder, tmp_path / "csan") == 2
    assert "has mismatched keys: [('final_logits_bias', " in capsys.readouterr().err
    (folder / "config.json").write_text(config)
    weights = folder / "model.safetensors"
    for content in (weights.read_bytes()[:5000], b"version https://git-lfs.github.com/spec/v1"):
        weights.write_bytes(content)
        assert run_script(folder, tmp_path / "csan") == 2
        assert f"The weights in {folder} are damaged, incomplete or unsafe" in capsys.readouterr().err
    weights.unlink()
    torch.save({"weights": torch.nn.Linear(1, 1)}, folder / "pytorch_model.bin")  # a pickle of more than tensors
    assert run_script(folder, tmp_path / "csan") == 2
    assert f"The weights in {folder} are damaged, incomplete or unsafe" in capsys.readouterr().err
    assert not (tmp_path / "csan").exists()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"encoder_layers": 10**8}, "encoder_layers"),
        ({"encoder_ffn_dim": 10**15}, "alloc"),
        ({"d_model": "x"}, "d_model"),
    ],
)
def test_absurd_sizes_are_one_line(fields, told, tmp_path, capsys):
    build_marian().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **fields}))
    assert run_script(tmp_path, tmp_path / "csan") == 2
    assert told in capsys.readouterr().err.splitlines()[-1]


def test_a_checkpoint_is_not_converted_into_itself(tmp_path, capsys):
    build_marian().save_pretrained(tmp_path / "marian")
    (tmp_path / "link").symlink_to(tmp_path / "marian")
    before = {path.name: path.read_bytes() for path in (tmp_path / "marian").iterdir()}
    assert run_script(tmp_path / "marian", tmp_path / "link") == 2
    assert "is the checkpoint itself, which would be lost" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (tmp_path / "marian").iterdir()} == before
