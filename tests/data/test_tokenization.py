# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
import json
import logging
import unicodedata

import pytest
import sentencepiece
from datasets import Dataset, DatasetDict
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from csan_hf.alignment.tokenized_text import tokenize_texts
from csan_hf.data import (
    DataArguments,
    TokenizerArguments,
    TokenizerPair,
    load_numbers,
    tokenize_dataset,
    train_tokenizer,
    train_tokenizers,
)
from csan_hf_runtime.text_files import VARIANTS
from csan_hf_runtime.vocabulary import VocabularyFile

# Spaces and invisible marks
SPACES_AND_MARKS = "".join(
    sign for sign in map(chr, range(0x10000)) if unicodedata.category(sign) in ("Zs", "Cf")
)
SENTENCES = [
    "a man rides a horse .",
    "zwei Hunde laufen über die Wiese .",
    "1984 oder 42 ?",
    "日本語 の 文",
] * 4

ALL_SPACES = [*SENTENCES, SPACES_AND_MARKS]

joined = train_tokenizer(ALL_SPACES, 400, model_max_length=64)
plain_digits = train_tokenizer(ALL_SPACES, 400, split_digits=False, unicode_form="NFKC")


def round_trip(tokenizer, text):
    return tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True)


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
@settings(max_examples=400)
@example("")
@example(" ")
@example("   leading and trailing  ")
@example("\n\r\n\ttabs\u2028and\x00lines\n")
@example("😀 👩\u200d👩\u200d👧 e\u0301 ﬁ １２３")
@example("a </s> b<pad></s> <unk>")
@example("</s>")
@example("I 'm n't . , ? ! 's")
@example("你好，世界！ ½ m²")
def test_the_round_trip_gives_the_text_in_its_unicode_form(text):
    # Rust's forms, as Python may know another version of Unicode
    assert round_trip(joined, text) == normalizers.NFC().normalize_str(text)
    assert round_trip(plain_digits, text) == normalizers.NFKC().normalize_str(text)


@pytest.mark.parametrize("kind", ["bpe", "characters"])
def test_spaces_and_marks_that_training_texts_hardly_had_do_not_count(kind):
    texts = ["am n"] * 3_000 + ["\u202f"] * 4 + ["\u00a0\u00a0\u00a0\u200b"]
    tokenizer = train_tokenizer(texts, 300, kind=kind)
    for text in ("a\u00a0man", "\u200fa\u2009m\u200ban\ufeff"):
        assert tokenizer(text)["input_ids"] == tokenizer("a man")["input_ids"]
    assert tokenizer("a\u202fman")["input_ids"] != tokenizer("a man")["input_ids"]
    [aligned] = tokenize_texts(tokenizer, ["a\u00a0m\u200ban"])
    assert aligned.words[:2] == (("a", "m\u200ban") if kind == "bpe" else ("a", "m"))
    assert aligned.word_of_token[-2] == len(aligned.words) - 1


def test_special_tokens():
    ids = joined("a man")["input_ids"]
    assert joined.convert_ids_to_tokens(ids)[0] == "Ġa"
    assert joined.decode(ids) == "a man</s>"
    typed = joined("a </s> b")["input_ids"]
    assert typed.index(1) == len(typed) - 1
    assert joined("a man rides a horse . " * 40, truncation=True)["input_ids"][63:] == [1]
    assert "token_type_ids" not in joined("a")


def test_digits_are_tokens_of_their_own_unless_asked_otherwise():
    years = ["1984 1984 1984"] * 50
    assert train_tokenizer(years, 300, split_digits=False).tokenize("1984") == ["Ġ1984"]
    assert train_tokenizer(years, 300).tokenize("x1984") == ["Ġ", "x", "1", "9", "8", "4"]
    assert train_tokenizer(ALL_SPACES, 400).get_vocab() == joined.get_vocab(), "the same again"


@pytest.mark.parametrize(
    ("kind", "smallest", "words"),
    [("bpe", 259, "256 bytes and 3 special tokens"), ("symbols", 3, "3 special tokens")],
)
def test_a_vocabulary_has_room_for_bytes_and_special_tokens(kind, smallest, words):
    size = smallest - 1
    message = f"vocab_size is {size}; it must be at least {smallest}: {words}"
    with pytest.raises(ValueError, match=message):
        train_tokenizer(SENTENCES, size, kind=kind)
    assert len(train_tokenizer(SENTENCES, smallest, kind=kind)) == smallest


@pytest.mark.parametrize("target", [plain_digits, train_tokenizer(["a"], 9, kind="symbols")])
def test_separate_tokenizers_are_saved_and_loaded(target, tmp_path):
    pair = TokenizerPair(joined, target)
    pair.save_pretrained(tmp_path)
    assert type(joined) is PreTrainedTokenizerFast, "others may use it as it is"
    within = TokenizerPair.from_pretrained(tmp_path.parent, subfolder=tmp_path.name)
    for loaded in (TokenizerPair.from_pretrained(tmp_path), within):
        assert not loaded.is_joint
        assert loaded.digest() == pair.digest()
    source = AutoTokenizer.from_pretrained(tmp_path)
    assert source("a") == joined("a")
    with pytest.raises(ValueError, match=r"vocabulary of its own.*subfolder='target_tokenizer'"):
        source("a", text_target="a")
    alone = AutoTokenizer.from_pretrained(tmp_path, subfolder="target_tokenizer")
    assert alone(text_target="a")["input_ids"] == target("a")["input_ids"]


def test_code_that_did_not_run_is_not_passed_on(tmp_path):
    TokenizerPair(joined, plain_digits).save_pretrained(tmp_path / "theirs")
    for file in tmp_path.rglob("tokenizer_config.json"):
        settings = json.loads(file.read_text()) | {"auto_map": {"AutoTokenizer": [None, "odd.T"]}}
        file.write_text(json.dumps(settings))
    TokenizerPair.from_pretrained(tmp_path / "theirs").save_pretrained(tmp_path / "ours")
    saved = [*(tmp_path / "ours").rglob("tokenizer_config.json")]
    assert len(saved) == 2
    for file in saved:
        settings = json.loads(file.read_text())
        assert not settings.keys() & {"auto_map", "is_local", "local_files_only"}


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("tokenizer.json", b""),
        ("tokenizer.json", b"{}"),
        ("tokenizer_config.json", b"[]"),
        ("tokenizer_config.json", b'{"tokenizer_class": '),
        ("target_tokenizer/tokenizer.json", b""),
        ("target_tokenizer/tokenizer_config.json", b"[]"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, path, content):
    TokenizerPair(joined, plain_digits).save_pretrained(tmp_path)
    file = tmp_path / path
    file.write_bytes(content)
    message = rf"tokenizer in {file.parent} is damaged .*copy tokenizer\.json"
    with pytest.raises(OSError, match=message):
        TokenizerPair.from_pretrained(tmp_path)


def test_what_holds_no_tokenizer_is_named(tmp_path):
    (tmp_path / "spm.model").write_bytes(b"\x0a\x0e")
    (tmp_path / "config.json").write_text('{"model_type": "marian"}')
    for path in (tmp_path / "spm.model", tmp_path):
        message = rf"in {path} is damaged .*SentencePiece's \.model, again"
        with pytest.raises(OSError, match=message):
            TokenizerPair.from_pretrained(path)
    (tmp_path / "spm.model").unlink()
    (tmp_path / "config.json").write_text('{"model_type": "csan"}')
    with pytest.raises(OSError, match=f"^There is no tokenizer in {tmp_path}"):
        TokenizerPair.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "canine"}')
    assert len(TokenizerPair.from_pretrained(tmp_path).source) == 1114112, "it needs no files"


@pytest.fixture
def sentencepiece_model(tmp_path):
    """A function that trains a model of SentencePiece and returns its file."""

    def train(texts, **options):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_prefix=str(tmp_path / "spm"),
            hard_vocab_limit=False,
            minloglevel=2,
            **options,
        )
        return tmp_path / "spm.model"

    return train


@pytest.mark.parametrize("kind", ["unigram", "bpe", "char"])
@pytest.mark.parametrize(
    "options", [{}, {"byte_fallback": True, "pad_id": 3}, {"add_dummy_prefix": False, "eos_id": -1}]
)
def test_a_model_of_sentencepiece_gives_its_own_tokens(kind, options, sentencepiece_model):
    corpus = load_numbers(train_size=500)["train"]
    file = sentencepiece_model(corpus["source"], vocab_size=500, model_type=kind, **options)
    oracle = sentencepiece.SentencePieceProcessor(str(file))
    pair = TokenizerPair.from_pretrained(file, file)
    assert not pair.is_joint
    pair.save_pretrained(file.parent / "saved")
    padding = oracle.bos_id() if oracle.pad_id() < 0 else oracle.pad_id()
    numbers = corpus["source"][:50] + corpus["target"][:50]
    texts = [*numbers, "  Ｗｉｄｅ  １２\u00a0 ", "", "日本 ﬁ\tx😀", "1.5"]
    for tokenizer in (pair.source, TokenizerPair.from_pretrained(file.parent / "saved").target):
        assert len(tokenizer) == len(oracle) + (oracle.eos_id() < 0)
        assert tokenizer.pad_token_id == padding
        assert oracle.eos_id() in (-1, tokenizer.eos_token_id)
        for text in texts:
            ids = oracle.encode(text)
            assert tokenizer(text)["input_ids"] == [*ids, tokenizer.eos_token_id], text
            if oracle.unk_id() not in ids:
                assert round_trip(tokenizer, text) == oracle.decode(ids)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("line", ["a<b > c /s unk pad </s <unk", "s a nu"])
def test_what_looks_like_a_special_piece_of_sentencepiece_is_text(kind, line, sentencepiece_model):
    file = sentencepiece_model([line] * 9, vocab_size=40, model_type=kind)
    oracle = sentencepiece.SentencePieceProcessor(str(file))
    tokenizer = TokenizerPair.from_pretrained(file).source
    for text in ("a </s> b", "<unk>", "s<unk>y", "<s></s>", "▁ </s>▁", "</S> <pad>"):
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == oracle.encode(text), text


@pytest.mark.parametrize("options", [{"model_type": "word"}, {"user_defined_symbols": ["<x>"]}])
def test_a_model_of_sentencepiece_that_would_be_read_otherwise_is_refused(
    options, sentencepiece_model
):
    file = sentencepiece_model(SENTENCES, vocab_size=40, **options)
    with pytest.raises(ValueError, match="of words, or with user_defined_symbols"):
        TokenizerPair.from_pretrained(file)


def test_vocabularies_are_joint_or_separate():
    corpus = load_numbers(train_size=200)["train"]
    joint = train_tokenizers(corpus, TokenizerArguments(350))
    assert joint.is_joint
    assert len(joint.source) == 350
    pair = train_tokenizers(corpus, TokenizerArguments(350, joint=False, target_vocab_size=330))
    assert (len(pair.source), len(pair.target)) == (350, 330)
    assert "Ġhundred" in pair.source.get_vocab().keys() - pair.target.get_vocab().keys()
    for name, value in (("target_vocab_size", 330), ("target_kind", "symbols")):
        with pytest.raises(ValueError, match=f"{name} is .*, but the vocabulary is joint"):
            train_tokenizers(corpus, TokenizerArguments(350, **{name: value}))


# 259 tokens are the bare bytes: a text of n letters has n + 2 tokens, the space before it and </s>
# included
BYTES = TokenizerPair(*[train_tokenizer(["x"], 259)] * 2)


def tokenized(**limits):
    texts = {
        "train": {
            "source": ["abc", "abcdefgh", "abc", "a"],
            "target": ["xyz", "x", "u" * 9, "abcd"],
        },
        "validation": {"source": ["abcdefgh", "", "ab"], "target": ["x", "y", "u" * 9]},
    }
    corpus = DatasetDict({split: Dataset.from_dict(columns) for split, columns in texts.items()})
    return tokenize_dataset(corpus, BYTES, DataArguments(dataset="numbers", **limits))


def test_long_pairs_leave_the_training_split_only():
    data, report = tokenized(max_source_length=8, max_target_length=9)
    assert data["train"]["source"][:] == ["abc", "a"]
    assert data["train"]["labels"][0] == BYTES.target("xyz")["input_ids"]
    assert data["validation"]["source"][:] == ["abcdefgh", "", "ab"]
    assert report.read == {"train": 4, "validation": 3}
    assert report.kept == {"train": 2, "validation": 3}
    reasons = {"with a source longer than 8 tokens": 1, "with a target longer than 9 tokens": 1}
    assert report.dropped == {"train": reasons, "validation": {}}
    remarks = {"with a source cut to 8 tokens": 1, "with a target cut to 9 tokens": 1}
    assert report.noted == {"train": {}, "validation": remarks}
    names = {"source", "target", "input_ids", "attention_mask", "labels"}
    assert set(data["train"].column_names) == names
    cut = data["validation"][0]
    assert BYTES.source.decode(cut["input_ids"]) == "abcdef</s>"
    assert [len(cut["attention_mask"]), len(data["validation"]["labels"][2])] == [8, 9]
    # Limits are inclusive; lengths are 5:5, 10:3, 5:11 and 3:6, which is exactly 2
    data, report = tokenized(max_length_ratio=2)
    assert data["train"]["source"][:] == ["abc", "a"]
    assert "dropped: 2 with a length ratio above 2" in str(report)
    data, _ = tokenized(max_source_length=10, max_target_length=11)
    assert len(data["train"]) == 4
    with pytest.raises(ValueError, match="no training pair is left: max_source_length=2"):
        tokenized(max_source_length=2)


def test_pairs_that_the_training_split_has_too_are_counted():
    texts = {
        "train": {"source": ["a", "b", "b", "c"], "target": ["x", "y", "z", "x"]},
        "validation": {"source": ["b", "a"], "target": [f"u{VARIANTS}y{VARIANTS}z", "y"]},
        "test": {"source": ["a", "a", "c"], "target": ["x", "x", "y"]},
        "other": {"source": ["d"], "target": ["x"]},
    }
    corpus = DatasetDict({split: Dataset.from_dict(columns) for split, columns in texts.items()})
    _, report = tokenize_dataset(corpus, BYTES, DataArguments(dataset="numbers"))
    remark = "that the training split has, too"
    noted = {split: remarks[remark] for split, remarks in report.noted.items()}
    assert noted == {"train": 0, "validation": 1, "test": 2, "other": 0}
    assert f"test: 3 of 3 pairs; kept: 2 {remark}" in str(report)


# ---- tokens that are characters or symbols

LETTERS = "abcé갂 \n<>/s"
characters = train_tokenizer([LETTERS], 100, kind="characters")
decomposed = train_tokenizer([LETTERS], 100, kind="characters", unicode_form="NFD")
symbols = train_tokenizer(["tʰ a ː", "ɑ̃ é é"], 100, kind="symbols")


@given(
    text=st.text(st.sampled_from(LETTERS), max_size=20),
    phones=st.lists(st.sampled_from(["tʰ", "a", "ː", "ɑ̃", "é", "é"]), max_size=10),
)
@settings(max_examples=100)
@example("a </s> b", [])
@example("  ", [])
@example("", [])
def test_characters_and_symbols_come_back_exactly(text, phones):
    assert round_trip(characters, text) == text
    assert round_trip(decomposed, text) == unicodedata.normalize("NFD", text)
    assert len(characters(text)["input_ids"]) == len(text) + 1
    assert round_trip(symbols, " ".join(phones)) == " ".join(phones)
    assert len(symbols("  ".join(phones))["input_ids"]) == len(phones) + 1


@pytest.mark.parametrize("kind", ["bpe", "characters"])
def test_capitals_may_be_small_letters(kind):
    keep, lower = (
        train_tokenizer(["don't STOP"], 300, kind=kind, case=case) for case in ("keep", "lower")
    )
    assert round_trip(keep, "STOP don't") == "STOP don't"
    assert round_trip(lower, "STOP Don’t") == "stop don't"
    texts = Dataset.from_dict({"source": ["A b"], "target": ["C d"]})
    pair = train_tokenizers(texts, TokenizerArguments(300, joint=False, kind=kind, case="lower"))
    assert round_trip(pair.source, "A b") == "a b"
    assert round_trip(pair.target, "C d") == "C d"


@pytest.mark.parametrize("tokenizer", [joined, characters, symbols], ids=["bpe", "chars", "phones"])
def test_a_joint_tokenizer_replaces_separate_ones_and_needs_no_csan_hf(tokenizer, tmp_path):
    TokenizerPair(joined, plain_digits).save_pretrained(tmp_path)
    TokenizerPair(tokenizer, tokenizer).save_pretrained(tmp_path)
    assert TokenizerPair.from_pretrained(tmp_path).is_joint
    plain = AutoTokenizer.from_pretrained(tmp_path)
    assert type(plain).__module__.startswith("transformers.")
    assert (plain.pad_token_id, plain.eos_token_id, plain.unk_token_id) == (0, 1, 2)
    assert (plain.pad_token, plain.eos_token, plain.unk_token) == ("<pad>", "</s>", "<unk>")
    assert plain.model_max_length == tokenizer.model_max_length
    assert plain("b", text_target="b")["labels"]
    for text in ("a é", "z é", " 42 </s> horses", "über\n日本"):
        assert plain(text)["input_ids"] == tokenizer(text)["input_ids"]
        assert round_trip(plain, text) == round_trip(tokenizer, text)
    if tokenizer is not joined:
        assert tokenizer("z")["input_ids"] == [2, 1]


@pytest.mark.parametrize(
    ("texts", "warns"), [(["kæt", "dɒɡ", "a ː"], True), (["k æ t", "a ː", "a"], False)]
)
def test_phones_without_spaces_are_warned_of(texts, warns, caplog, monkeypatch):
    for name in ("transformers", "csan_hf"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    assert "ː" in train_tokenizer(iter(texts), 10, kind="symbols").get_vocab()
    assert ("separated by spaces" in caplog.text) == warns


def test_letters_to_phones():
    vocabulary = train_tokenizer(["a a b b c"], 5, kind="symbols").get_vocab()
    assert vocabulary.keys() == {"<pad>", "</s>", "<unk>", "a", "b"}, "the most frequent"
    pairs = Dataset.from_dict({"source": ["an"], "target": ["a n"]})
    both = train_tokenizers(
        pairs, TokenizerArguments(10, joint=False, kind="characters", target_kind="symbols")
    )
    assert both.source.tokenize("na") == both.target.tokenize("n a") == ["n", "a"]
    assert " " not in both.target.get_vocab()
    texts = Dataset.from_dict({"source": ["n", "A n"], "target": ["Z", "n"]})
    _, report = tokenize_dataset(DatasetDict(test=texts), both, DataArguments(dataset="numbers"))
    remark = "with letters or signs that the source vocabulary does not have"
    assert report.noted["test"] == {remark: 1}


# ---- texts of several lines

of_lines = {
    "bpe": train_tokenizer(SENTENCES, 400, has_lines=True),
    "characters": train_tokenizer(["abc é"], 20, kind="characters", has_lines=True),
    "symbols": train_tokenizer(["a b c é"], 20, kind="symbols", has_lines=True),
}


@pytest.mark.parametrize("kind", of_lines)
@given(lines=st.lists(st.text(st.sampled_from("abé "), max_size=6), min_size=1, max_size=6))
@settings(max_examples=200)
@example(["a", "", "  b", "c"])
@example(["", " ", ""])
def test_a_text_is_its_lines_with_marks_between_them(kind, lines):
    tokenizer = of_lines[kind]
    if kind == "symbols":  # with one space between them
        lines = [" ".join(line.replace(" ", "")) for line in lines]
    text = "\n".join(lines)
    assert round_trip(tokenizer, text) == text
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    expected = []
    for line in lines:
        expected += [3, *tokenizer(line, add_special_tokens=False)["input_ids"]]
    assert ids == expected[1:]


@pytest.mark.parametrize("kind", of_lines)
def test_the_mark_is_text_wherever_the_tokenizer_is_read(kind, tmp_path):
    tokenizer = of_lines[kind]
    assert 3 not in tokenizer.all_special_ids
    assert len(train_tokenizer(SENTENCES, 300, has_lines=True)) == 300
    symbols = train_tokenizer(["a b"], 10, kind="symbols", has_lines=True)
    TokenizerPair(tokenizer, symbols).save_pretrained(tmp_path)
    assert TokenizerPair.from_pretrained(tmp_path).line_token_id == 3
    vocabulary = VocabularyFile(tmp_path, size=len(tokenizer))
    text = "\na b\n\nb\n" if kind == "symbols" else "\na\n\n  b\n"
    ids = tokenizer(text)["input_ids"]
    assert AutoTokenizer.from_pretrained(tmp_path)(text)["input_ids"] == ids
    assert round_trip(AutoTokenizer.from_pretrained(tmp_path), text) == text
    assert vocabulary.encode(text) == ids
    assert vocabulary.decode(ids) == text


def test_only_a_token_that_leaves_lines_as_they_are_is_a_mark():
    with pytest.raises(ValueError, match=r"'\\n' must be one token, with the same number in both"):
        _ = TokenizerPair(joined, joined).line_token_id
    named = train_tokenizer(SENTENCES, 400)
    named.add_tokens([AddedToken("<line>", normalized=False, special=False)])
    pair = TokenizerPair(named, named, line_token="<line>")
    number = pair.line_token_id
    assert named.convert_ids_to_tokens(number) == "<line>"
    with pytest.raises(ValueError, match="'<line>' must be one token"):
        _ = TokenizerPair(named, of_lines["bpe"], line_token="<line>").line_token_id
    corpus = DatasetDict(test=Dataset.from_dict({"source": ["a\nman"], "target": ["a\n\nman"]}))
    tokenized, _ = tokenize_dataset(corpus, pair, DataArguments(dataset="numbers"))
    row = tokenized["test"][0]
    assert row["input_ids"] == named("a<line>man")["input_ids"]
    assert row["labels"].count(number) == 2
    texts = ["a\n  man\n\nm", "\n"]
    marked = [text.replace("\n", "<line>") for text in texts]
    assert pair.decode(named(marked, padding=True, return_tensors="np")["input_ids"]) == texts
    assert pair.digest() != TokenizerPair(named, named).digest()
    with pytest.raises(ValueError, match="line_token is '<line>'; in a new vocabulary"):
        TokenizerArguments(line_token="<line>")


@pytest.mark.parametrize("kind", of_lines)
def test_a_vocabulary_has_room_for_the_end_of_a_line(kind):
    smallest = 260 if kind == "bpe" else 4
    assert len(train_tokenizer(["a"], smallest, kind=kind, has_lines=True)) == smallest
    with pytest.raises(ValueError, match="3 special tokens and the end of a line"):
        train_tokenizer(["a"], smallest - 1, kind=kind, has_lines=True)
