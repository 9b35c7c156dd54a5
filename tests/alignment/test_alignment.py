# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Word links from known matrices, and matrices from models."""

from functools import partial

import numpy as np
import pytest
import tiny
import torch

from csan_hf.alignment import Alignment, TokenizedText, pairs_within_positions
from csan_hf.evaluation import align, align_stream, translate
from csan_hf.lab.analysis import channel_shares
from csan_hf.lab.analysis.attention_statistics import attention_statistics


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
    for threshold, expected in (
        (0.0, [(0, 0), (1, 0), (3, 0)]),
        (0.3, [(0, 0), (1, 0)]),
        (0.375, [(0, 0)]),  # 3 of 8 does not exceed it
        # Without one every target word has its link: the least negative one, the first of equals
        (None, [(0, 0), (0, 1), (0, 2)]),
    ):
        assert contributions.links(threshold=threshold) == expected
    assert contributions.links(threshold=0.3, symmetric=True) == [(0, 0), (1, 0)]
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


SIZES = {"vocab_size": 300, "dropout": 0.3}  # as many tokens as `tokenizers` have
csan = partial(tiny.csan, **SIZES, local_window=5, head_area=3)
grid = partial(tiny.grid, **SIZES, decoder_vocab_size=300)
recurrent = partial(tiny.recurrent, **SIZES)
convolutional = partial(tiny.convolutional, **SIZES)


def marian(**options):
    model = tiny.marian(**SIZES, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)  # so that outputs differ from one sentence to the next
    return model


def test_errors(tokenizers):
    model = csan()
    for words, options, message in (
        (["a", "b"], {}, r"zip\(\) argument 2 is shorter"),
        (["a"], {"num_beams": 2}, "num_beams: leave out, as nothing is generated"),
        (["a"], {"layer": -3}, "layer must be from -2 to 1, got -3"),
    ):
        with pytest.raises(ValueError, match=message):
            align(model, tokenizers, words, ["c"], **options)
    assert align(model, tokenizers, [], []) == []
    model.register_forward_hook(
        lambda module, inputs, outputs: setattr(outputs, "cross_attentions", None)
    )
    with pytest.raises(ValueError, match="CsanForConditionalGeneration gives no cross_attentions"):
        align(model, tokenizers, ["a"], ["b"])
    with pytest.raises(ValueError, match="need a Pervasive Attention model with aggregation='max'"):
        channel_shares(grid(aggregation="average"), tokenizers, ["one"], ["eins"])


TOO_LONG = "A sentence has 11 tokens, and MarianMTModel has positions for 9"


def test_sentences_beyond_the_positions_of_a_model(tokenizers, caplog):
    model = marian(max_position_embeddings=9)
    longest = "1 2 3 4"
    beyond = "1 2 3 4 5"
    [alignment] = align(model, tokenizers, [longest], [longest])
    assert alignment.matrix.shape == (9, 9)
    assert attention_statistics(model, tokenizers, [longest]).queries == 9
    for source, target in ((longest, beyond), (beyond, longest)):
        [alignment] = align(model, tokenizers, [source], [target])
        assert alignment.matrix.shape == (9, 9)
        assert "what is behind is not aligned: '1 2 3 4 5'" in caplog.text
        caplog.clear()
    with pytest.raises(ValueError, match=TOO_LONG):
        attention_statistics(model, tokenizers, [beyond])
    sources, targets = [longest, beyond, longest], [longest, longest, beyond]
    assert pairs_within_positions(model, tokenizers, sources, targets) == [0]
    assert pairs_within_positions(model, tokenizers, sources) == [0, 2]


def aligned_in_training(model, tokenizers):
    """The alignments of a model that is training, in batches, each with the model's outputs for it
    alone.
    """
    implementation = model.config._attn_implementation
    alignments = align(model.train(), tokenizers, SOURCES, TARGETS, batch_size=3)
    assert (model.config._attn_implementation, model.training) == (implementation, True)
    model.eval().set_attn_implementation("eager")
    for alignment, source, target in zip(alignments, SOURCES, TARGETS, strict=True):
        assert (alignment.source.text, alignment.target.text) == (source, target)
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
    model = make()
    model.set_attn_implementation(implementation)
    for alignment, outputs in aligned_in_training(model, tokenizers):
        expected = outputs.cross_attentions[-1][0].mean(0)
        np.testing.assert_allclose(alignment.matrix, expected, atol=1e-5)
        np.testing.assert_allclose(alignment.matrix.sum(1), 1, atol=1e-5)
        assert alignment.measure == f"attention weight, decoder layer {layer}"


@pytest.mark.parametrize("aggregation", ["max", "average", "attention", "max_attention"])
def test_pervasive_attention(tokenizers, aggregation):
    model = grid(aggregation=aggregation)
    for alignment, outputs in aligned_in_training(model, tokenizers):
        np.testing.assert_allclose(
            alignment.matrix, outputs.cross_attentions[0][0, 0], rtol=1e-4, atol=1e-4
        )
        total = alignment.matrix.sum(1)
        if aggregation == "attention":
            assert alignment.measure == "attention weight ρ"
            np.testing.assert_allclose(total, 1, atol=1e-5)
            continue
        assert alignment.measure == "contribution to the target token's logit"
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
    model = family()
    model.generation_config.max_length = 10
    expected = translate(model, tokenizers, SOURCES, num_beams=2)
    assert len(set(expected)) > 1, "the test wants different translations"
    alignments = align(model, tokenizers, SOURCES, num_beams=2)
    assert [alignment.target.text for alignment in alignments] == expected
    assert alignments[1].target.text == ""
    forced_alignments = align(model, tokenizers, SOURCES, expected)
    for alignment, forced_alignment in zip(alignments, forced_alignments, strict=True):
        np.testing.assert_array_equal(alignment.matrix, forced_alignment.matrix)


def test_shares_of_channels(tokenizers):
    model = grid().train()
    sources, targets = ["one two three", "the number"], ["eins zwei", "die Zahl ist"]
    alignments = channel_shares(model, tokenizers, sources, targets)
    assert model.training
    model.eval()
    for alignment, source, target in zip(alignments, sources, targets, strict=True):
        ids = tokenizers.source(source, return_tensors="pt")["input_ids"]
        labels = tokenizers.target(target, return_tensors="pt")["input_ids"]
        inputs = model.prepare_decoder_input_ids_from_labels(labels)
        with torch.no_grad():
            outputs = model.model(input_ids=ids, decoder_input_ids=inputs, output_attentions=True)
        alone = outputs.cross_attentions[0][0, 0].numpy()  # without padding
        assert alignment.measure == "share of channels"
        assert alignment.matrix == pytest.approx(alone, abs=1e-6)
        # Channels that are zero everywhere belong to no token
        shares = alignment.matrix.sum(axis=1)
        assert ((shares > 0) & (shares < 1 + 1e-6)).all()


class Lines(list):
    """Lines that are counted as they are gone through."""

    read = 0

    def __iter__(self):
        for line in super().__iter__():
            self.read += 1
            yield line


@pytest.mark.parametrize("translates", [False, True])
def test_pairs_are_aligned_as_they_come(tokenizers, translates, monkeypatch):
    model = csan()
    model.generation_config.max_length = 5
    texts = ["one two", "", "three", "one", "two three one"]
    monkeypatch.setattr("csan_hf_runtime.windows.WINDOW_LINES", 2)
    sources = Lines(texts)
    targets = None if translates else Lines(texts[::-1])
    stream = align_stream(model, tokenizers, sources, targets)
    first = next(stream)
    assert sources.read == (2 + 2 if translates else 2)  # once to translate, once to align
    expected = align(model, tokenizers, texts, None if translates else texts[::-1])
    for alignment, whole in zip([first, *stream], expected, strict=True):
        assert (alignment.source, alignment.target) == (whole.source, whole.target)
        assert alignment.matrix == pytest.approx(whole.matrix, abs=1e-6)


def test_long_pairs_are_aligned_a_few_at_a_time(tokenizers, monkeypatch):
    model = csan()
    texts = ["one two three " * 3, "one two three " * 3, "one", "two", "three"]
    expected = align(model, tokenizers, texts, texts)
    sizes = []
    model.register_forward_pre_hook(
        lambda _, args, inputs: sizes.append(len(inputs["input_ids"])), with_kwargs=True
    )
    monkeypatch.setattr(
        "csan_hf.alignment.aligned_pairs.BATCH_CELLS", len(expected[0].source.ids) ** 2 + 1
    )
    alignments = align(model, tokenizers, texts, texts)
    assert sizes == [1, 1, 3], "pairs of similar lengths go together"
    for alignment, together in zip(alignments, expected, strict=True):
        assert alignment.matrix == pytest.approx(together.matrix, abs=1e-6)
        assert alignment.matrix.base is None  # it does not keep the padded weights of its batch
