# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Ensembles: the mean of their members' probabilities, step by step, saved and loaded."""

import pytest
import tiny
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    DynamicCache,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from csan_hf import CsanConfig, CsanForConditionalGeneration, EnsembleForConditionalGeneration
from csan_hf.data import train_tokenizer
from csan_hf.pipelines.ensemble import EnsembleConfig


def marian(seed=0):
    sizes = tiny.transformer_sizes(16, layers=1, heads=2, ffn=16)
    return tiny.marian(seed, **sizes, init_std=0.7)


def members():
    """One of each family, one with a cache of its own kind, and one of another library's."""
    vocabulary = {"vocab_size": tiny.VOCABULARY, "decoder_vocab_size": tiny.VOCABULARY}
    grid = tiny.grid(1, **vocabulary, share_encoder_decoder_embeddings=False)
    return [tiny.csan(0), grid, tiny.recurrent(2), tiny.convolutional(3), marian(4)]


SEPARATE = {"decoder_vocab_size": 50, "share_encoder_decoder_embeddings": False}
SOURCE = tiny.padded_sources((7, 4), words=tiny.VOCABULARY)


@pytest.mark.parametrize("beams", [1, 3])
def test_caches_lie_side_by_side(beams):
    models = members()
    ensemble = EnsembleForConditionalGeneration.of(models)
    options = {**SOURCE, "num_beams": beams, "min_new_tokens": 40, "max_new_tokens": 40}
    expected = ensemble.generate(**options, use_cache=False)
    sizes = []
    models[0].model.decoder.register_forward_pre_hook(
        lambda _, args, kwargs: sizes.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    assert ensemble.generate(**options).tolist() == expected.tolist()
    assert sizes == [1] * 40


@pytest.mark.parametrize("helper", ["prompt lookup", "assistant"])
@pytest.mark.parametrize("kind", range(5), ids=["csan", "grid", "rnn", "conv", "marian"])
def test_drafts_that_are_wrong_are_taken_back(kind, helper):
    ensemble = EnsembleForConditionalGeneration.of([members()[kind], tiny.csan(1)])
    options = {name: tensor[:1] for name, tensor in SOURCE.items()}
    options |= {"max_new_tokens": 30, "min_new_tokens": 30}
    drafts = {"prompt_lookup_num_tokens": 2}
    if helper == "assistant":
        drafts = {"assistant_model": EnsembleForConditionalGeneration.of([members()[kind]])}
    expected = ensemble.generate(**options)
    assert ensemble.generate(**options, **drafts).tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
@pytest.mark.filterwarnings("ignore:.*past_key_values:FutureWarning")
def test_a_cache_of_another_kind_is_refused(name):
    ensemble = EnsembleForConditionalGeneration.of([tiny.csan(0), tiny.csan(1)])
    words = "a cache for each member, which DynamicCache cannot hold"
    for call in (ensemble, ensemble.generate):
        with pytest.raises(ValueError, match=words):
            call(**SOURCE, decoder_input_ids=SOURCE["input_ids"], **{name: DynamicCache()})
    with pytest.raises(ValueError, match="cache_implementation='static' is not for ensembles"):
        ensemble.generate(**SOURCE, cache_implementation="static")


def test_an_ensemble_is_saved_as_one_checkpoint(tmp_path):
    models = members()
    for number, model in enumerate(models):
        model.save_pretrained(tmp_path / str(number))
    names = [tmp_path / str(number) for number in range(len(models))]
    ensemble = EnsembleForConditionalGeneration.from_pretrained(names)
    ensemble.save_pretrained(tmp_path / "all")
    for loaded in (ensemble, AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "all")):
        assert isinstance(loaded, EnsembleForConditionalGeneration)
        assert loaded.members[0].lm_head.weight is loaded.members[0].model.shared.weight
        for expected, member in zip(models, loaded.members, strict=True):
            assert type(member) is type(expected)
            torch.testing.assert_close(member.state_dict(), expected.state_dict(), atol=0, rtol=0)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({}, {"vocab_size": 60}, r"target vocabulary \(60 and 50\)"),
        ({"vocab_size": 60, **SEPARATE}, {"vocab_size": 40, **SEPARATE}, r"source vocab.* \(40 and 60"),
        ({}, {"eos_token_id": 2}, r"eos_token_id \(2 and 1\)"),
    ],
    ids=["target", "source", "end"],
)  # fmt: skip
def test_members_share_their_tokens(first, second, message):
    with pytest.raises(ValueError, match=f"differ in their {message}"):
        EnsembleForConditionalGeneration.of([tiny.csan(0, **first), tiny.csan(0, **second)])


@pytest.mark.parametrize("subfolder", ["", "best"])
def test_members_share_their_vocabularies(subfolder, tmp_path):
    names = [tmp_path / "a", tmp_path / "none", tmp_path / "b"]
    for name, tokens in zip(names, ("a c", None, "b c"), strict=True):
        tiny.csan(0).save_pretrained(name / subfolder)
        if tokens is not None:
            train_tokenizer([tokens], 20, kind="symbols").save_pretrained(name / subfolder)
    load = EnsembleForConditionalGeneration.from_pretrained
    load(names[:2], subfolder=subfolder)
    with pytest.raises(ValueError, match=r"b and .*a have different vocabularies"):
        load(names, subfolder=subfolder)


def test_adapters_may_be_members(tmp_path):
    base = tmp_path / "base"
    tiny.csan(0).save_pretrained(base)
    names = [tmp_path / "first", tmp_path / "second"]
    for name in names:
        lora = LoraConfig(task_type="SEQ_2_SEQ_LM", target_modules=["q_proj"], r=2)
        get_peft_model(AutoModelForSeq2SeqLM.from_pretrained(base), lora).save_pretrained(name)
    ensemble = EnsembleForConditionalGeneration.from_pretrained(names)
    assert {type(member) for member in ensemble.members} == {CsanForConditionalGeneration}


def test_a_saved_ensemble_that_lacks_weights_is_refused(tmp_path):
    EnsembleForConditionalGeneration.of([tiny.csan(0), tiny.csan(1)]).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    del weights["members.1.model.encoder.layers.0.fc1.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks members\.1.*fc1\.weight"):
        EnsembleForConditionalGeneration.from_pretrained(tmp_path)


def test_an_ensemble_has_the_positions_of_its_members():
    """The fewest of those that have any: without absolute positions a config's number means nothing."""
    unlimited = CsanConfig.preset("long", vocab_size=60)
    limited = CsanConfig.base(vocab_size=60, max_position_embeddings=64)
    for configs, positions in (([unlimited, unlimited], None), ([limited, unlimited], 64)):
        config = EnsembleConfig(members=[config.to_dict() for config in configs])
        assert config.max_position_embeddings == positions


def test_an_ensemble_may_be_a_member():
    pair = EnsembleForConditionalGeneration.of([tiny.csan(0), tiny.recurrent(2)])
    assert [*EnsembleForConditionalGeneration.of([pair, tiny.csan(1)]).members[:2]] == [
        *pair.members
    ]


@torch.no_grad()
def test_a_trainer_evaluates_an_ensemble(tmp_path):
    """Also members whose configs ask for tuples."""
    first = tiny.csan(0)
    first.config.return_dict = False
    ensemble = EnsembleForConditionalGeneration.of([first, tiny.csan(1)])
    rows = [{"input_ids": [3, 4, 5, 1], "labels": [6, 7, 1]}]
    collate = DataCollatorForSeq2Seq(tiny.tokenizer(("a",)), model=ensemble)
    arguments = Seq2SeqTrainingArguments(str(tmp_path), use_cpu=True, report_to=[])
    trainer = Seq2SeqTrainer(ensemble, arguments, data_collator=collate, eval_dataset=rows)
    expected = ensemble(**collate(rows)).loss.item()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected)


@torch.no_grad()
def test_probabilities_are_averaged():
    models = members()
    ensemble = EnsembleForConditionalGeneration.of(models)
    labels = tiny.labels_of((5, 3))
    probabilities = [model(**SOURCE, labels=labels).logits.softmax(-1) for model in models]
    steps = torch.stack(probabilities).mean(dim=0).log()
    outputs = ensemble(**SOURCE, labels=labels)
    real = labels != -100
    log_probabilities = outputs.logits.log_softmax(-1)
    torch.testing.assert_close(log_probabilities[real], steps[real], atol=2e-5, rtol=1e-5)
    chosen = steps.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    torch.testing.assert_close(outputs.loss, -chosen[real].mean())
    assert ensemble(**SOURCE, labels=torch.full((2, 3), -100)).loss == 0


@torch.no_grad()
@pytest.mark.parametrize("method", [{"line": True}, {"moving_gaussian": {"ends_within": 1}}])
def test_forced_targets_are_not_hindered_as_in_generation(method):
    model = tiny.csan(**tiny.PLAIN, line_token_id=7, cross_locality=[method] * 2)
    ensemble = EnsembleForConditionalGeneration.of([model, model])
    source = tiny.padded_sources((3,), words=tiny.VOCABULARY)
    labels = tiny.labels_of((9,))
    torch.testing.assert_close(
        ensemble(**source, labels=labels).loss, model(**source, labels=labels).loss
    )
