# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
import pytest
import torch
from datasets import Dataset
from transformers import AutoTokenizer, GenerationConfig, MarianMTModel, pipeline
from transformers.pipelines.pt_utils import KeyDataset

from csan_hf import PervasiveAttentionConfig, PervasiveAttentionForConditionalGeneration
from csan_hf.pipelines import (
    TASK,
    TextTranslationPipeline,
    TranslationPipeline,
    register,
    translation_pipeline,
)

SENTENCES = [
    "eins zwei drei",
    "ein Hund",
    "",
    "vier fünf sechs sieben acht neun",
    "Katze",
    "zehn und eins",
]


@pytest.fixture
def translator(joint):
    model, tokenizer = joint
    return TranslationPipeline(model=model, tokenizer=tokenizer, device="cpu")


def test_empty_text_has_an_empty_translation(translator):
    assert translator("") == [{"translation_text": ""}]
    assert translator([" \n", "Hund"])[0] == {"translation_text": ""}
    assert translator("", num_return_sequences=2, num_beams=2) == [{"translation_text": ""}] * 2
    assert translator([]) == []
    translator.tokenizer.backend_tokenizer.post_processor = None  # of a tokenizer that adds nothing
    assert translator.tokenizer("")["input_ids"] == []
    assert translator(["", "Hund"], batch_size=2)[0] == {"translation_text": ""}


def test_several_sequences_give_a_list_per_sentence(translator):
    results = translator(SENTENCES[:2], num_beams=3, num_return_sequences=3, batch_size=2)
    assert [len(result) for result in results] == [3, 3]
    assert results[0] == translator(SENTENCES[0], num_beams=3, num_return_sequences=3)


@pytest.mark.parametrize("kind", [TranslationPipeline, TextTranslationPipeline])
def test_generators_datasets_tuples_and_columns(kind, joint):
    translator = kind(model=joint[0], tokenizer=joint[1], device="cpu", max_new_tokens=6)
    expected = translator(SENTENCES)
    dataset = Dataset.from_dict({"text": SENTENCES})
    assert translator(tuple(SENTENCES)) == expected
    assert translator(dataset["text"]) == expected
    stream = (row["text"] for row in dataset.to_iterable_dataset())
    for each in (stream, KeyDataset(dataset, "text")):
        assert [result[0] for result in translator(each, batch_size=4)] == expected
    if kind is TextTranslationPipeline:
        with pytest.raises(TypeError, match="must be a string, got dict"):
            next(translator(dataset.to_iterable_dataset()))


def test_generate_arguments_pass_through(translator, joint, monkeypatch):
    _, tokenizer = joint
    allowed = [*tokenizer.convert_tokens_to_ids(["dog", "cat"]), tokenizer.eos_token_id]
    ids = joint[0].generate(
        **tokenizer("ein Hund", return_tensors="pt"), max_new_tokens=9, num_beams=3
    )
    expected = tokenizer.decode(ids[0], skip_special_tokens=True)
    assert translator("ein Hund", max_new_tokens=9, num_beams=3) == [{"translation_text": expected}]
    [result] = translator(
        "ein Hund", prefix_allowed_tokens_fn=lambda batch, ids: allowed, max_new_tokens=6
    )
    assert set(result["translation_text"].split()) <= {"dog", "cat"}
    config = GenerationConfig(num_beams=2, max_new_tokens=4)
    assert translator("ein Hund", generation_config=config) == translator(
        "ein Hund", num_beams=2, max_new_tokens=4
    )
    monkeypatch.setattr(
        "transformers.generation.utils.logger.warning", pytest.fail
    )  # once for every batch
    translator.model.generation_config.max_length = 20
    assert translator("ein Hund", max_new_tokens=9, num_beams=3) == [{"translation_text": expected}]


def test_arguments_of_the_constructor_are_defaults(joint):
    model, tokenizer = joint
    defaults = {"batch_size": 2, "max_new_tokens": 3, "return_tensors": True}
    results = TranslationPipeline(model=model, tokenizer=tokenizer, device="cpu", **defaults)(
        SENTENCES[:2]
    )
    assert [list(result) for result in results] == [["translation_token_ids"]] * 2
    assert all(len(result["translation_token_ids"]) == 4 for result in results)
    assert results[0]["translation_token_ids"].dtype == torch.long


def test_wrong_arguments_are_refused(translator, joint):
    with pytest.raises(ValueError, match="numbeams"):
        translator("ein Hund", numbeams=3)
    for bad in (3, None, {"text": "Hund"}):
        with pytest.raises(TypeError, match="must be a string"):
            translator(["Hund", bad])
    with pytest.raises(ValueError, match="needs a tokenizer"):
        TranslationPipeline(model=joint[0], device="cpu")


def endless(model, length):
    """Forbids the end of the sentence."""
    model.generation_config.update(suppress_tokens=[1], max_length=length)
    return model


def test_default_length_depends_on_the_source_not_on_twenty(joint):
    model, tokenizer = joint
    endless(model, None)
    translator = TranslationPipeline(model=model, tokenizer=tokenizer, device="cpu")
    for num_beams in (1, 2):
        [result] = translator("Hund", return_tensors=True, num_beams=num_beams)
        assert len(result["translation_token_ids"]) == 1 + 2 * 2 + 50
        results = translator(
            ["Hund", "Hund " * 20], batch_size=2, return_tensors=True, num_beams=num_beams
        )
        short, long = [result["translation_token_ids"] for result in results]
        assert int((short > 1).sum()) == 2 * 2 + 50, "a neighbour must not matter"
        assert len(long) == 64, "nothing beyond the positions of the model"


def test_own_lengths_and_stopping_criteria_are_kept(joint):
    model, tokenizer = joint
    endless(model, 30)
    translator = TranslationPipeline(
        model=model, tokenizer=tokenizer, device="cpu", return_tensors=True
    )

    def at_five(input_ids, scores, **kwargs):
        return torch.full((input_ids.shape[0],), input_ids.shape[1] >= 5)

    for options, length in (
        ({}, 30),
        ({"max_length": 7}, 7),
        ({"stopping_criteria": [at_five]}, 5),
    ):
        assert len(translator("Hund", **options)[0]["translation_token_ids"]) == length
    model.generation_config.max_length = None
    assert len(translator("Hund", stopping_criteria=[at_five])[0]["translation_token_ids"]) == 5


def test_long_sources_warn_are_cut_or_refused(translator, library_log):
    translator("Hund " * 30, max_length=20)
    assert not library_log.text
    with pytest.raises(IndexError):  # Marian has no positions beyond; other models extend theirs
        translator("Hund " * 70)
    assert "71 tokens" in library_log.text
    assert "truncation=True" in library_log.text
    # the end of the sentence counts: 63 words and </s> fit
    assert translator("Hund " * 70, truncation=True) == translator("Hund " * 63)


def test_separate_vocabularies_decode_with_the_target(separate, tmp_path):
    model, source, target = separate
    with pytest.raises(ValueError, match="target_tokenizer"):
        TranslationPipeline(model=model, tokenizer=source, device="cpu")
    translator = TranslationPipeline(
        model=model, tokenizer=source, target_tokenizer=target, device="cpu"
    )
    expected = translator("eins zwei drei", max_new_tokens=8)
    assert set(expected[0]["translation_text"].split()) <= {*target.get_vocab()}

    model.save_pretrained(tmp_path)
    source.save_pretrained(tmp_path)
    loaded = MarianMTModel.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="target_tokenizer"):
        TranslationPipeline(model=loaded, tokenizer=tokenizer, device="cpu")
    target.save_pretrained(tmp_path / "target_tokenizer")
    for name in (TASK, None):
        build = TranslationPipeline if name is None else lambda **kwargs: pipeline(TASK, **kwargs)
        register()
        again = build(model=loaded, tokenizer=tokenizer, device="cpu")
        assert again("eins zwei drei", max_new_tokens=8) == expected
    for by_name in (
        translation_pipeline(tmp_path, device="cpu"),
        pipeline(TASK, model=str(tmp_path), device="cpu"),
    ):
        assert by_name("eins zwei drei", max_new_tokens=8) == expected


def test_vocabularies_of_one_size_need_no_second_folder(joint, tmp_path):
    """One tokenizer, saved as usual, serves source and target embeddings that are separate."""
    _, tokenizer = joint
    sizes = {
        "vocab_size": len(tokenizer),
        "source_embed_dim": 4,
        "target_embed_dim": 4,
        "growth_rate": 2,
    }
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = PervasiveAttentionConfig(
        **sizes, **ids, num_layers=1, decoder_start_token_id=tokenizer.pad_token_id
    )
    assert not config.share_encoder_decoder_embeddings
    PervasiveAttentionForConditionalGeneration(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = PervasiveAttentionForConditionalGeneration.from_pretrained(tmp_path)
    translator = TranslationPipeline(
        model=model, tokenizer=AutoTokenizer.from_pretrained(tmp_path), device="cpu"
    )
    assert translator("Hund", max_new_tokens=5)
