# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
import pytest
import tiny
import torch
from datasets import Dataset
from transformers import AutoTokenizer, GenerationConfig, MarianMTModel, pipeline
from transformers.pipelines.pt_utils import KeyDataset

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


def plain_translator(model, tokenizer, **options):
    return TranslationPipeline(model=model, tokenizer=tokenizer, device="cpu", **options)


@pytest.fixture
def translator(joint):
    return plain_translator(*joint)


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
    for texts in (tuple(SENTENCES), dataset["text"]):
        assert translator(texts) == expected
    for texts in ((text for text in SENTENCES), KeyDataset(dataset, "text")):
        assert [result for [result] in translator(texts, batch_size=4)] == expected
    if kind is TextTranslationPipeline:
        assert [result for [result] in translator(Rows())] == expected
        with pytest.raises(TypeError, match="must be texts, got dict"):
            next(translator(dataset.to_iterable_dataset()))


def test_generate_arguments_pass_through(translator, joint, monkeypatch):
    model, tokenizer = joint
    options = {"max_new_tokens": 9, "num_beams": 3}
    ids = model.generate(**tokenizer("ein Hund", return_tensors="pt"), **options)
    expected = [{"translation_text": tokenizer.decode(ids[0], skip_special_tokens=True)}]
    assert translator("ein Hund", **options) == expected
    assert translator("ein Hund", generation_config=GenerationConfig(**options)) == expected
    allowed = [*tokenizer.convert_tokens_to_ids(["dog", "cat"]), tokenizer.eos_token_id]
    [result] = translator("ein Hund", prefix_allowed_tokens_fn=lambda batch, ids: allowed)
    assert set(result["translation_text"].split()) <= {"dog", "cat"}
    # Or there would be one for every batch
    monkeypatch.setattr("transformers.generation.utils.logger.warning", pytest.fail)
    model.generation_config.max_length = 20
    assert translator("ein Hund", **options) == expected


def test_arguments_of_the_constructor_are_defaults(joint):
    defaults = {"batch_size": 2, "max_new_tokens": 3, "return_tensors": True}
    for result in plain_translator(*joint, **defaults)(SENTENCES[:2]):
        assert list(result) == ["translation_token_ids"]
        assert len(result["translation_token_ids"]) == 4


def test_wrong_arguments_are_refused(translator, joint):
    with pytest.raises(ValueError, match="numbeams"):
        translator("ein Hund", numbeams=3)
    for bad in (3, None, {"text": "Hund"}):
        with pytest.raises(TypeError, match="must be a string"):
            translator(["Hund", bad])
    with pytest.raises(ValueError, match="needs a tokenizer"):
        plain_translator(joint[0], None)


def endless(model, length):
    """Forbids the end of the sentence."""
    model.generation_config.update(suppress_tokens=[1], max_length=length)


@pytest.mark.parametrize("beams", [1, 2])
def test_default_length_depends_on_the_source_not_on_twenty(beams, translator):
    endless(translator.model, None)
    options = {"num_beams": beams, "return_tensors": True}
    [result] = translator("Hund", **options)
    assert len(result["translation_token_ids"]) == 1 + 2 * 2 + 50
    results = translator(["Hund", "Hund " * 20], batch_size=2, **options)
    short, long = [result["translation_token_ids"] for result in results]
    assert int((short > 1).sum()) == 2 * 2 + 50, "a neighbour must not matter"
    assert len(long) == 64, "nothing beyond the positions of the model"


def at_five(input_ids, scores, **kwargs):
    return torch.full((input_ids.shape[0],), input_ids.shape[1] >= 5)


@pytest.mark.parametrize(
    ("usual", "options", "length"),
    [
        (30, {}, 30),
        (30, {"max_length": 7}, 7),
        (30, {"stopping_criteria": [at_five]}, 5),
        (None, {"stopping_criteria": [at_five]}, 5),
    ],
)
def test_lengths_and_stopping_criteria_are_kept(usual, options, length, translator):
    endless(translator.model, usual)
    [result] = translator("Hund", return_tensors=True, **options)
    assert len(result["translation_token_ids"]) == length


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
        plain_translator(model, source)
    expected = plain_translator(model, source, target_tokenizer=target)("eins zwei drei")
    assert set(expected[0]["translation_text"].split()) <= {*target.get_vocab()}

    model.save_pretrained(tmp_path)
    source.save_pretrained(tmp_path)
    loaded = MarianMTModel.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="target_tokenizer"):
        plain_translator(loaded, tokenizer)
    target.save_pretrained(tmp_path / "target_tokenizer")
    register()
    for translator in (
        plain_translator(loaded, tokenizer),
        pipeline(TASK, model=loaded, tokenizer=tokenizer, device="cpu"),
        pipeline(TASK, model=str(tmp_path), device="cpu"),
        translation_pipeline(tmp_path, device="cpu"),
    ):
        assert translator("eins zwei drei") == expected


def test_vocabularies_of_one_size_need_no_second_folder(joint, tmp_path):
    """One tokenizer, saved as usual, serves source and target embeddings that are separate."""
    _, tokenizer = joint
    size = len(tokenizer)
    model = tiny.grid(vocab_size=size, decoder_vocab_size=size)
    assert not model.config.share_encoder_decoder_embeddings
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path)
    assert translation_pipeline(tmp_path, device="cpu")("Hund", max_new_tokens=5)


class Rows:
    """A data set of torch, which has no end but its length."""

    def __len__(self):
        return len(SENTENCES)

    def __getitem__(self, number):
        return SENTENCES[number % len(SENTENCES)]
