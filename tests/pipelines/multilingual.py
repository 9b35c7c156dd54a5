# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Tiny random models of the families that translate between several languages, with tokenizers made
here.
"""

import json

import tiny
import torch
from transformers import (
    M2M100Config,
    M2M100ForConditionalGeneration,
    M2M100Tokenizer,
    MarianConfig,
    MarianMTModel,
    MarianTokenizer,
    MBart50Tokenizer,
    MBartConfig,
    MBartForConditionalGeneration,
    MBartTokenizer,
    NllbTokenizer,
    T5Config,
    T5ForConditionalGeneration,
)

WORDS = ("one", "two", "three", "eins", "zwei", "drei", "translate", "English", "to", "German:")
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
SIZES = {
    **tiny.transformer_sizes(16, layers=1, heads=2, ffn=16),
    "max_position_embeddings": 64,
    "init_std": 1.0,
}


def sentencepiece_model(folder, vocabulary_first=SPECIAL):
    """A SentencePiece model of `WORDS` and a vocabulary file for it."""
    import sentencepiece

    folder.mkdir(exist_ok=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*WORDS, " ".join(WORDS)] * 5),
        model_prefix=str(folder / "sp"),
        vocab_size=45,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "sp.model"))
    pieces = [processor.id_to_piece(number) for number in range(processor.get_piece_size())]
    vocabulary = [*vocabulary_first, *(piece for piece in pieces if piece not in SPECIAL)]
    (folder / "vocab.json").write_text(
        json.dumps({piece: number for number, piece in enumerate(vocabulary)})
    )
    return str(folder / "sp.model"), str(folder / "vocab.json")


def build(model_class, config, tokenizer):
    """A random model and its tokenizer; it seldom generates special tokens, whose embeddings are
    short.
    """
    torch.manual_seed(0)
    model = model_class(config).eval()
    model.generation_config.forced_eos_token_id = None
    special = {*tokenizer.all_special_ids, *getattr(tokenizer, "lang_code_to_id", {}).values()}
    with torch.no_grad():
        model.get_input_embeddings().weight[sorted(special)] *= 0.8
    return model, tokenizer


def nllb(folder, **sizes):
    vocabulary = {piece: number for number, piece in enumerate(SPECIAL)}
    for character in "▁" + "".join(WORDS):
        vocabulary.setdefault(character, len(vocabulary))
    tokenizer = NllbTokenizer(
        vocab=vocabulary, merges=[], extra_special_tokens=["eng_Latn", "deu_Latn", "fra_Latn"]
    )
    config = M2M100Config(**{**SIZES, "vocab_size": len(tokenizer), **sizes})
    return build(M2M100ForConditionalGeneration, config, tokenizer)


def m2m100(folder):
    model_file, vocabulary_file = sentencepiece_model(folder)
    tokenizer = M2M100Tokenizer(vocabulary_file, model_file)
    size = max(tokenizer.lang_code_to_id.values()) + 1
    return build(M2M100ForConditionalGeneration, M2M100Config(vocab_size=size, **SIZES), tokenizer)


def mbart(folder, tokenizer_class=MBartTokenizer):
    vocabulary = [(piece, 0.0) for piece in SPECIAL] + [(f"▁{word}", -1.0) for word in WORDS]
    tokenizer = tokenizer_class(vocab=vocabulary)
    size = (
        max(tokenizer.get_vocab().values()) + 1
    )  # more than len(tokenizer) where an id is left out
    config = MBartConfig(vocab_size=size, scale_embedding=True, decoder_start_token_id=2, **SIZES)
    return build(MBartForConditionalGeneration, config, tokenizer)


def mbart50(folder):
    return mbart(folder, MBart50Tokenizer)


def t5(folder):
    tokenizer = tiny.tokenizer(WORDS, model_max_length=512)
    tasks = {
        "translation_en_to_de": {
            "prefix": "translate English to German: ",
            "num_beams": 2,
            "max_length": 12,
        }
    }
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=16,
        d_kv=8,
        d_ff=16,
        num_layers=1,
        num_heads=2,
        initializer_factor=20.0,
        decoder_start_token_id=0,
        task_specific_params=tasks,
    )
    return build(T5ForConditionalGeneration, config, tokenizer)


def marian(folder):
    """With several target languages, as opus-mt-en-ROMANCE."""
    first = ("</s>", "<unk>", ">>fra<<", ">>ita<<", "<pad>")
    model_file, vocabulary_file = sentencepiece_model(folder, first)
    tokenizer = MarianTokenizer(model_file, model_file, vocabulary_file)
    ids = dict.fromkeys(("pad_token_id", "decoder_start_token_id"), tokenizer.pad_token_id)
    config = MarianConfig(
        vocab_size=len(tokenizer), **ids, eos_token_id=0, forced_eos_token_id=None, **SIZES
    )
    return build(MarianMTModel, config, tokenizer)
