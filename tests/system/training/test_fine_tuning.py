# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""From weights or a tokenizer that are there: the shipped recipe, and several language pairs with
tags.
"""

from pathlib import Path

import pytest
import tiny
from pipelines import multilingual
from system.training.tiny_runs import parse, save_tiny_marian
from tokenizers import processors
from transformers import AutoTokenizer

from csan_hf.hub.public_files import read_json
from csan_hf.pipelines import translation_pipeline
from csan_hf.training import train_from_recipe
from csan_hf.training.errors import RecipeError
from csan_hf.training.plan import resolve
from csan_hf_runtime.texts import LanguageTags

RECIPE = Path(__file__).parents[3] / "scripts" / "recipes" / "multi30k_finetune_marian.yaml"
SHORT = (
    "--max_steps 2 --eval_steps 2 --warmup_steps 1 --use_cpu --bf16 false --num_beams 1 "
    "--generation.max_length 8 --report_to none --training.keep_best 1"
)


def test_the_recipe_for_fine_tuning_makes_a_marian_local(tmp_path):
    marian = save_tiny_marian(tmp_path / "marian")
    for split in ("train", "val", "test_2016_flickr", "test_2017_flickr"):
        for language, text in (("de", "ein Hund läuft\n"), ("en", "a dog runs\n")):
            (tmp_path / f"{split}.{language}").write_text(text * 4, encoding="utf-8")
    places = f"--init_from {marian} --data_dir {tmp_path} --output_dir {tmp_path}/run"
    results = train_from_recipe(parse(f"{RECIPE} {SHORT} {places}"))
    assert list(results["scores"]) == ["validation", "test_2016", "test_2017"]
    config = read_json(tmp_path / "run" / "config.json")
    assert config["encoder_locality"][0] == {"window": 11, "head_area": 3}
    assert (tmp_path / "run" / "tokenizer.json").read_bytes() == (
        marian / "tokenizer.json"
    ).read_bytes()


@pytest.mark.parametrize("key", ["tokenizer", "init_from"])
def test_several_language_pairs_add_tags_to_a_tokenizer_or_weights_that_are_there(tmp_path, key):
    output = tmp_path / "run"
    folder = save_tiny_marian(tmp_path / "marian")
    words = (
        f"--{key} {folder} --dataset numbers --language_pairs de-en,en-de --data.train_size 30 "
        "--validation_size 3 --test_size 2 --d_model 16 --encoder_layers 3 --decoder_layers 1 "
        "--encoder_ffn_dim 32 --decoder_ffn_dim 32 --encoder_attention_heads 4 "
        f"--decoder_attention_heads 4 --output_dir {output}"
    )
    results = train_from_recipe(parse(f"{words} {SHORT}"))
    sentences = {name: entry["sentences"] for name, entry in results["scores"].items()}
    assert sentences == {"validation": 6, "test_de-en": 2, "test_en-de": 2}
    tokenizer = AutoTokenizer.from_pretrained(output)
    size = len(AutoTokenizer.from_pretrained(folder))
    assert tokenizer.convert_tokens_to_ids([">>en<<", ">>de<<"]) == [size, size + 1]
    assert read_json(output / "config.json")["vocab_size"] == size + 2
    assert "\n- de\n- en\n" in (output / "README.md").read_text(encoding="utf-8")
    # The pipeline knows the tags by the names of the languages
    translate = translation_pipeline(str(output), device="cpu")
    tagged = [translate(f">>{language}<< zwei")[0] for language in ("de", "en")]
    for text in ("zwei", ">>de<< zwei"):
        assert translate(text, tgt_lang="de") == tagged[:1]
    assert translate("zwei", tgt_lang="en") == tagged[1:]
    # What is typed is text, but at the beginning of a text without a language
    tags = LanguageTags([">>en<<", ">>de<<"])
    for typed in ("a >>> b", "a >>>de<< b", ">>de<< a"):
        text, before = tags.mark(typed, "", "en")
        ids = tokenizer(before + text)["input_ids"]
        assert tokenizer.convert_tokens_to_ids(">>de<<") not in ids
        assert ids[0] == tokenizer.convert_tokens_to_ids(">>en<<")
    assert tags.mark("zwei", "drei ", "de") == ("zwei", ">>de<< drei ")
    assert translate("zwei", prefix=">>de<< ")[0] == tagged[0]


def test_source_and_target_tokenizers_may_come_from_different_places(tmp_path):
    words = f"--dataset numbers --output_dir {tmp_path}/run"
    for key, letters in (("pretrained", "abc"), ("pretrained_target", "defgh")):
        tiny.tokenizer(letters).save_pretrained(tmp_path / key)
        words += f" --tokenizer.{key} {tmp_path}/{key}"
    config = resolve(parse(words)).config
    assert (config.vocab_size, config.decoder_vocab_size) == (6, 8)
    assert not config.share_encoder_decoder_embeddings


@pytest.mark.parametrize("lacks", ["pad_token", "eos_token", "post_processor"])
def test_a_tokenizer_that_ends_no_text_is_refused(tmp_path, lacks):
    tokenizer = AutoTokenizer.from_pretrained(save_tiny_marian(tmp_path / "marian"))
    if lacks == "post_processor":
        tokenizer._tokenizer.post_processor = processors.Sequence([])
    else:
        setattr(tokenizer, lacks, None)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    words = f"--tokenizer {tmp_path}/tokenizer --dataset numbers --output_dir {tmp_path}/run"
    message = "no pad_token, or no eos_token that it adds to a text.*: set both"
    with pytest.raises(RecipeError, match=message):
        train_from_recipe(parse(words))


@pytest.mark.parametrize(
    ("make", "languages", "unknown"),
    [
        (multilingual.nllb, ("deu_Latn", "fra_Latn"), "de"),
        (multilingual.m2m100, ("de", "fr"), "deu_Latn"),
    ],
    ids=["nllb", "m2m100"],
)
def test_a_multilingual_tokenizer_marks_the_languages_of_the_data(
    make, languages, unknown, tmp_path
):
    model, tokenizer = make(tmp_path / "pieces")
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "model")
    source, target = languages
    for language in (*languages, unknown):
        (tmp_path / f"train.{language}").write_text("eins zwei\ndrei\n" * 4)
    words = (
        f"{SHORT} --init_from {tmp_path}/model --data_dir {tmp_path} --output_dir {tmp_path}/run "
        f"--target_lang {target} --data.train train.{{lang}} --data.validation train.{{lang}}"
    )
    message = f"^data.source_lang and data.target_lang .* has no language '{unknown}'"
    with pytest.raises(RecipeError, match=message):
        train_from_recipe(parse(f"{words} --source_lang {unknown}"))
    train_from_recipe(parse(f"{words} --source_lang {source}"))
    saved = AutoTokenizer.from_pretrained(tmp_path / "run")
    assert (saved.src_lang, saved.tgt_lang) == languages
    code = saved.convert_tokens_to_ids(getattr(saved, "lang_code_to_token", {}).get(target, target))
    generation = read_json(tmp_path / "run" / "generation_config.json")
    assert generation["forced_bos_token_id"] == code
