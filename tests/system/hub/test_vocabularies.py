# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""`tokenizer.json` of tokenizers that are Python in transformers: the same tokens and texts."""

import json
import random

import pytest
import sentencepiece
from tokenizers import Tokenizer
from transformers import M2M100Config, M2M100Tokenizer, MarianConfig, MarianTokenizer

from csan_hf.data.corpora import load_numbers
from csan_hf.hub.vocabularies import save_vocabularies

LINES = load_numbers(train_size=300, validation_size=1, test_size=1)["train"]
PARTS = [
    *("hundert", "seven", " ", "  ", "▁", "ß", "日本", "☃", "7", "\t", "\u00a0", "Ｗ", "ﬁ", "½"),
    *("<unk>", "</s>", "<pad>", "e\u0301", "\u304b\u3099", "\u1100\u1161", "__de__", "😀", "İ"),
]


def texts():
    generator = random.Random(1)
    mixed = ["".join(generator.choices(PARTS, k=generator.randrange(9))) for _ in range(300)]
    return [">>fra<< seven", *LINES["source"][:50], *LINES["target"][:50], *mixed]


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    """Trains a model of SentencePiece on lines: its file and its pieces, but for every ninth."""

    def train(lines, kind):
        file = tmp_path_factory.mktemp("pieces") / "sp"
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_prefix=str(file),
            vocab_size=300,
            model_type=kind,
            hard_vocab_limit=False,
            minloglevel=2,
        )
        model = sentencepiece.SentencePieceProcessor(model_file=f"{file}.model")
        names = [model.id_to_piece(number) for number in range(3, len(model))]
        return f"{file}.model", [name for place, name in enumerate(names) if place % 9]

    return train


def write_vocabulary(path, tokens):
    path.write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    return str(path)


def marian(pieces, folder, separate):
    source, source_pieces = pieces(LINES["source"], "unigram")
    target, target_pieces = pieces([*LINES["target"], "日本 7"], "unigram")
    special = ["</s>", "<unk>", ">>fra<<", "<pad>"]
    sides = [source_pieces, target_pieces]
    if not separate:
        sides = [[*source_pieces, *target_pieces]] * 2
    vocabularies = [list(dict.fromkeys([*special, *side])) for side in sides]
    files = [
        write_vocabulary(folder / f"{side}.json", vocabulary)
        for side, vocabulary in enumerate(vocabularies)
    ]
    tokenizer = MarianTokenizer(source, target, *files, separate_vocabs=separate)
    sizes = {"vocab_size": len(vocabularies[0]), "decoder_vocab_size": len(vocabularies[1])}
    return tokenizer, MarianConfig(**sizes, pad_token_id=3, decoder_start_token_id=3)


def m2m100(pieces, folder):
    file, names = pieces([*LINES["source"], *LINES["target"]], "bpe")
    vocabulary = write_vocabulary(
        folder / "vocab.json", ["<s>", "<pad>", "</s>", "<unk>", *names, "7"]
    )
    tokenizer = M2M100Tokenizer(vocabulary, file, src_lang="de", tgt_lang="en")
    return tokenizer, M2M100Config(vocab_size=max(tokenizer.lang_token_to_id.values()) + 9)


FAMILIES = {
    "Marian": lambda *where: marian(*where, separate=False),
    "Marian, two vocabularies": lambda *where: marian(*where, separate=True),
    "M2M100": m2m100,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_same_tokens_and_texts(family, pieces, tmp_path):
    tokenizer, config = FAMILIES[family](pieces, tmp_path)
    saved = tmp_path / "saved"
    saved.mkdir()
    save_vocabularies(tokenizer, saved, config)
    source = target = Tokenizer.from_file(str(saved / "tokenizer.json"))
    target_size = config.vocab_size
    if "Marian" in family:
        target = Tokenizer.from_file(str(saved / "target_tokenizer/tokenizer.json"))
        target_size = config.decoder_vocab_size

    def numbers(backend, text, size, **options):
        ids = backend.encode(text, **options).ids
        return [number if number < size else tokenizer.unk_token_id for number in ids]

    for text in texts():
        assert numbers(source, text, config.vocab_size) == tokenizer(text)["input_ids"], text
        ids = tokenizer(text_target=text, add_special_tokens=False)["input_ids"]
        assert numbers(target, text, target_size, add_special_tokens=False) == ids, text
        for backend in (source, target):
            if "two" not in family or backend is target:
                expected = tokenizer.decode(ids, skip_special_tokens=True)
                assert backend.decode(ids) == expected, text
