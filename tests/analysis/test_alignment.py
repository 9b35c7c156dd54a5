# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Word links from known matrices, and matrices from models."""

import numpy as np
import pytest
import tiny
import torch
from tokenizers import processors

from csan_hf.alignment import pairs_within_positions
from csan_hf.analysis import Alignment, TokenizedText, align, align_stream, channel_shares
from csan_hf.analysis.attention_statistics import attention_statistics
from csan_hf.data import TokenizerPair, train_tokenizer
from csan_hf.evaluation import translate


def text_of(*pieces):
    """A text whose words consist of the pieces given: "ab", "c+d" are two words and three tokens,
    and "</s>".
    """
    tokens, word_of_token = [], []
    for word, joined in enumerate(pieces):
        for piece in joined.split("+"):
            tokens.append(piece)
            word_of_token.append(word)
    words = tuple(joined.replace("+", "") for joined in pieces)
    return TokenizedText(
        " ".join(words),
        tuple(range(len(tokens) + 1)),
        (*tokens, "</s>"),
        words,
        (*word_of_token, None),
    )


def alignment_of(source, target, rows):
    return Alignment(text_of(*source), text_of(*target), np.array(rows, dtype=np.float32))


def test_words_are_sums_over_source_and_means_over_target_pieces():
    pieces = alignment_of(
        ["a", "b+c"],
        ["x+y", "z"],
        [
            # a  b    c    </s>
            [0.4, 0.1, 0.1, 0.4],  # x
            [0.2, 0.3, 0.5, 0.0],  # y
            [0.4, 0.3, 0.2, 0.1],  # z
            [0.9, 0.0, 0.0, 0.1],  # </s>
        ],
    )
    np.testing.assert_allclose(pieces.word_matrix(), [[0.3, 0.5], [0.4, 0.5]], rtol=1e-6)
    # Neither a nor b alone is as much as the two pieces together, and "</s>" counts for nothing
    assert pieces.links() == [(1, 0), (1, 1)]
    assert pieces.pharaoh() == "1-0 1-1"


def test_pharaoh_is_source_then_target_in_order():
    crossed = alignment_of(
        "abc", "xyz", [[0.1, 0.2, 0.7, 9], [0.8, 0.1, 0.1, 9], [0.6, 0.1, 0.2, 9], [9, 9, 9, 9]]
    )
    assert crossed.pharaoh() == "0-1 0-2 2-0"
    assert crossed.pharaoh(symmetric=True) == "0-1 2-0"
    assert crossed.pharaoh(threshold=0.2) == "0-1 0-2 2-0 2-2"


def test_threshold_is_a_share_of_the_positive_values():
    contributions = alignment_of(
        "abcd", "xyz", [[4, 3, -5, 1, 9], [-1, -2, -3, -4, 9], [0, 0, 0, 0, 9], [0] * 5]
    )
    assert contributions.links(threshold=0.0) == [(0, 0), (1, 0), (3, 0)]
    assert contributions.links(threshold=0.3) == [(0, 0), (1, 0)]
    assert contributions.links(threshold=0.375) == [(0, 0)]  # 3 of 8 does not exceed it
    assert contributions.links(threshold=0.3, symmetric=True) == [(0, 0), (1, 0)]
    # Without a threshold every target word has its link: the least negative one, the first of
    # equals
    assert contributions.links() == [(0, 0), (0, 1), (0, 2)]
    assert contributions.links(symmetric=True) == [(0, 0)]


def test_sentences_without_words_and_words_without_tokens_have_no_links():
    assert alignment_of([], "x", [[1], [1]]).pharaoh() == ""
    assert alignment_of("a", [], [[1, 1]]).pharaoh(threshold=0.1, symmetric=True) == ""
    assert alignment_of([], [], [[1]]).word_matrix().shape == (0, 0)
    source = TokenizedText(
        "- a", (5, 1), ("a", "</s>"), ("-", "a"), (1, None)
    )  # a word without tokens
    alignment = Alignment(source, text_of("x"), np.array([[-2, 0], [0, 0]], dtype=np.float32))
    assert alignment.word_matrix().tolist() == [[0, -2]]
    assert alignment.links() == [(1, 0)]


SOURCES = ["one two", "", "the number is twenty-one.", "three", "two", "two three one"]
TARGETS = ["eins zwei", "", "die Zahl ist einundzwanzig.", "", "zwei drei", "zwei drei eins"]


def marian(vocab_size):
    model = tiny.marian(vocab_size=vocab_size, dropout=0.3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)  # so that outputs differ from one sentence to the next
    return model


def csan(vocab_size):
    return tiny.csan(vocab_size=vocab_size, dropout=0.3, local_window=5, head_area=3)


def grid(vocab_size, aggregation="max"):
    return tiny.grid(
        vocab_size=vocab_size, decoder_vocab_size=vocab_size, dropout=0.3, aggregation=aggregation
    )


def recurrent(vocab_size):
    return tiny.recurrent(vocab_size=vocab_size, dropout=0.3)


def convolutional(vocab_size):
    return tiny.convolutional(vocab_size=vocab_size, dropout=0.3)


def test_errors(tokenizers):
    model = csan(len(tokenizers.source))
    with pytest.raises(ValueError, match=r"zip\(\) argument 2 is shorter"):
        align(model, tokenizers, ["a", "b"], ["c"])
    with pytest.raises(ValueError, match="num_beams: leave out, as nothing is generated"):
        align(model, tokenizers, ["a"], ["b"], num_beams=2)
    with pytest.raises(ValueError, match="layer must be from -2 to 1, got -3"):
        align(model, tokenizers, ["a"], ["b"], layer=-3)
    assert align(model, tokenizers, [], []) == []
    model.register_forward_hook(
        lambda module, inputs, outputs: setattr(outputs, "cross_attentions", None)
    )
    with pytest.raises(ValueError, match="CsanForConditionalGeneration gives no cross_attentions"):
        align(model, tokenizers, ["a"], ["b"])


def test_sentences_beyond_the_positions_of_a_model(tokenizers):
    model = tiny.marian(vocab_size=len(tokenizers.source), max_position_embeddings=9)
    longest, beyond = "1 2 3 4", "1 2 3 4 5"
    for text, tokens in ((longest, 9), (beyond, 11)):
        assert len(tokenizers.source(text)["input_ids"]) == tokens
    assert align(model, tokenizers, [longest], [longest])[0].matrix.shape == (9, 9)
    assert attention_statistics(model, tokenizers, [longest]).queries == 9
    message = "A sentence has 11 tokens, and MarianMTModel has positions for 9"
    for source, target in ((longest, beyond), (beyond, longest)):
        with pytest.raises(ValueError, match=message):
            align(model, tokenizers, [source], [target])
    with pytest.raises(ValueError, match=message):
        attention_statistics(model, tokenizers, [beyond])
    assert pairs_within_positions(
        model, tokenizers, [longest, beyond, longest], [longest, longest, beyond]
    ) == [0]
    assert pairs_within_positions(model, tokenizers, [longest, beyond]) == [0]


def test_tokenizers_without_an_end_of_sentence():
    tokenizer = train_tokenizer(["one two"] * 3, 270)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A", special_tokens=[]
    )
    pair = TokenizerPair(tokenizer, tokenizer)
    alignments = align(csan(len(tokenizer)), pair, ["", "one", "two"], ["one", "two", ""])
    assert [alignment.matrix.size > 0 for alignment in alignments] == [False, True, False]
    assert alignments[0].matrix.shape == (len(alignments[0].target.ids), 0)
    assert [alignment.pharaoh() for alignment in alignments] == ["", "0-0", ""]


def aligned_in_training(model, tokenizers):
    """The alignments of a model that is training, in batches, each with the model's outputs for it
    alone.
    """
    implementation = model.config._attn_implementation
    alignments = align(model.train(), tokenizers, SOURCES, TARGETS, batch_size=3)
    assert (model.config._attn_implementation, model.training) == (implementation, True)
    assert [(each.source.text, each.target.text) for each in alignments] == [
        *zip(SOURCES, TARGETS, strict=True)
    ]
    model.eval().set_attn_implementation("eager")
    for alignment, source, target in zip(alignments, SOURCES, TARGETS, strict=True):
        inputs = tokenizers.source(source, return_tensors="pt")
        labels = tokenizers.target(text_target=target, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            yield alignment, model(**inputs, labels=labels, output_attentions=True)


@pytest.mark.parametrize(
    ("make", "implementation", "layer"),
    [
        (csan, "sdpa", "1, mean of 4 heads"),
        (csan, "eager", "1, mean of 4 heads"),
        (csan, "blocked", "1, mean of 4 heads"),
        (recurrent, "eager", "0"),
        (convolutional, "eager", "1"),
    ],
)
def test_attention_of_the_last_layer(tokenizers, make, implementation, layer):
    model = make(len(tokenizers.source))
    model.set_attn_implementation(implementation)
    for alignment, outputs in aligned_in_training(model, tokenizers):
        expected = outputs.cross_attentions[-1][0].mean(0)
        np.testing.assert_allclose(alignment.matrix, expected, atol=1e-5)
        np.testing.assert_allclose(alignment.matrix.sum(1), 1, atol=1e-5)
        assert alignment.measure == f"attention weight, decoder layer {layer}"
    if make is csan:
        first, last = (
            align(model, tokenizers, SOURCES[:1], TARGETS[:1], layer=layer)[0].matrix
            for layer in (0, -1)
        )
        assert not np.allclose(first, last, atol=1e-3)


@pytest.mark.parametrize("aggregation", ["max", "average", "attention", "max_attention"])
def test_pervasive_attention(tokenizers, aggregation):
    model = grid(len(tokenizers.source), aggregation)
    label = (
        "attention weight ρ"
        if aggregation == "attention"
        else "contribution to the target token's logit"
    )
    for alignment, outputs in aligned_in_training(model, tokenizers):
        assert alignment.measure == label
        np.testing.assert_allclose(
            alignment.matrix, outputs.cross_attentions[0][0, 0], rtol=1e-4, atol=1e-4
        )
        total = alignment.matrix.sum(1)
        if aggregation == "attention":
            np.testing.assert_allclose(total, 1, atol=1e-5)
            continue
        # Equation 6: the contributions and the bias are the logit of the target token
        ids = torch.tensor(alignment.target.ids)
        with torch.no_grad():
            bias = (
                model.lm_head.bias
                + model.lm_head.weight @ model.model.decoder.output_projection.bias
            )
        logits = outputs.logits[0].gather(1, ids[:, None])[:, 0]
        np.testing.assert_allclose(total + bias[ids].numpy(), logits, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("family", [csan, marian, grid, recurrent, convolutional])
def test_the_models_own_translations(tokenizers, family):
    model = family(len(tokenizers.source))
    model.generation_config.max_length = 10
    expected = translate(model, tokenizers, SOURCES, num_beams=2)
    assert len(set(expected)) > 1, "the test wants different translations"
    alignments = align(model, tokenizers, SOURCES, num_beams=2)
    assert [alignment.target.text for alignment in alignments] == expected
    assert alignments[1].target.text == ""
    again = align(model, tokenizers, SOURCES, expected)
    for alignment, other in zip(alignments, again, strict=True):
        np.testing.assert_array_equal(alignment.matrix, other.matrix)


def test_shares_of_channels(tokenizers):
    model = grid(len(tokenizers.source)).train()
    sources, targets = ["one two three", "the number"], ["eins zwei", "die Zahl ist"]
    found = channel_shares(model, tokenizers, sources, targets)
    assert model.training
    model.eval()
    for alignment, source, target in zip(found, sources, targets, strict=True):
        ids, labels = (
            torch.tensor([tokenizers.source(text)["input_ids"]]) for text in (source, target)
        )
        inputs = model.prepare_decoder_input_ids_from_labels(labels)
        with torch.no_grad():
            outputs = model.model(input_ids=ids, decoder_input_ids=inputs, output_attentions=True)
        expected = outputs.cross_attentions[0][
            0, 0
        ].numpy()  # of the sentence alone, without padding
        assert alignment.measure == "share of channels"
        assert alignment.matrix == pytest.approx(expected, abs=1e-6)
        shares = alignment.matrix.sum(axis=1)
        assert ((shares > 0) & (shares < 1 + 1e-6)).all(), (
            "channels that are zero everywhere belong to no token"
        )
    model.config.aggregation = "average"
    with pytest.raises(ValueError, match="need a Pervasive Attention model with aggregation='max'"):
        channel_shares(model, tokenizers, sources, targets)


class Lines:
    """Lines that are there only while they are gone through, as those of a file."""

    def __init__(self, lines):
        self.lines, self.read = lines, 0

    def __len__(self):
        return len(self.lines)

    def __iter__(self):
        for line in self.lines:
            self.read += 1
            yield line


@pytest.mark.parametrize("translates", [False, True])
def test_pairs_are_aligned_as_they_come(tokenizers, translates, monkeypatch):
    model = csan(len(tokenizers.source))
    model.generation_config.max_length = 5
    texts = ["one two", "", "three", "one", "two three one"]
    monkeypatch.setattr("csan_hf.alignment.aligned_pairs.WINDOW_LINES", 2)
    monkeypatch.setattr("csan_hf_runtime.windows.WINDOW_LINES", 2)
    sources, targets = Lines(texts), None if translates else Lines(texts[::-1])
    stream = align_stream(model, tokenizers, sources, targets)
    first = next(stream)
    assert sources.read == (2 + 2 if translates else 2)  # once to translate, once to align
    expected = align(model, tokenizers, texts, None if translates else texts[::-1])
    for found, whole in zip([first, *stream], expected, strict=True):
        assert (found.source, found.target) == (whole.source, whole.target)
        assert found.matrix == pytest.approx(whole.matrix, abs=1e-6)


def test_long_pairs_are_aligned_a_few_at_a_time(tokenizers, monkeypatch):
    model = csan(len(tokenizers.source))
    texts = ["one two three " * 3, "one two three " * 3, "one", "two", "three"]
    expected = align(model, tokenizers, texts, texts)
    sizes = []
    model.register_forward_pre_hook(
        lambda _, args, inputs: sizes.append(len(inputs["input_ids"])), with_kwargs=True
    )
    monkeypatch.setattr(
        "csan_hf.alignment.aligned_pairs.BATCH_CELLS", len(expected[0].source.ids) ** 2 + 1
    )
    found = align(model, tokenizers, texts, texts)
    assert sizes == [1, 1, 3], "pairs of similar lengths go together"
    for one, other in zip(found, expected, strict=True):
        assert one.matrix == pytest.approx(other.matrix, abs=1e-6)
        assert one.matrix.base is None  # it does not keep the padded weights of its batch
