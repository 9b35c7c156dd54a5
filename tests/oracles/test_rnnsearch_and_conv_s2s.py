# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""RNNsearch and ConvS2S beside loops over single sentences, and their published sizes."""

import pytest
import torch
from reference import conv_s2s, rnnsearch
from tiny import convolutional, recurrent
from torch.nn.utils.rnn import pad_sequence
from torch.testing import assert_close
from transformers import DynamicCache, EncoderDecoderCache

from csan_hf.models.configuration_conv_s2s import ConvS2SConfig
from csan_hf.models.configuration_rnnsearch import RnnSearchConfig
from csan_hf.models.modeling_conv_s2s import ConvS2SForConditionalGeneration
from csan_hf.models.modeling_rnnsearch import RnnSearchForConditionalGeneration

TOKENS = {"vocab_size": 13, "decoder_vocab_size": 11, "dropout": 0.0}
RECURRENT = {
    f"{kind}{', fed' if feeding else ''}{', tied' if tied else ''}, {layers}": {
        "attention": kind, "input_feeding": feeding, "tie_word_embeddings": tied, "encoder_layers": layers,
        "source_embed_dim": 5, "target_embed_dim": 6, "hidden_size": 8,
    }
    for kind, feeding, tied, layers in [
        ("dot", False, True, 1), ("general", False, False, 2), ("additive", False, True, 3), ("dot", True, False, 1),
        ("general", True, True, 2), ("additive", True, False, 1),
    ]
}  # fmt: skip
CONVOLUTIONAL = {
    f"k {kernel}, {encoder} + {decoder}": {
        "tie_word_embeddings": kernel == 1, "kernel_size": kernel, "encoder_layers": encoder, "decoder_layers": decoder, "embed_dim": 6, "hidden_size": 7,
    }
    for kernel, encoder, decoder in [(3, 2, 2), (1, 1, 2), (5, 3, 1)]
}  # fmt: skip
SOURCES = [[5, 6, 7, 8, 1], [9, 1], [3, 4, 12, 1]]
TARGETS = [[0, 4, 5, 6, 2, 7], [0, 7, 8], [0, 3]]


def make(options):
    family = recurrent if "attention" in options else convolutional
    return family(seed=1, **TOKENS, **options).double()


def expected(model, options, weights, source, target):
    """The oracle's logits [I, V] and a list of weights [I, J]."""
    if "attention" in options:
        logits, attention = rnnsearch.logits(
            weights,
            source,
            target,
            attention=options["attention"],
            input_feeding=options["input_feeding"],
        )
        return logits, [attention]
    sizes = {name: options[name] for name in ("kernel_size", "encoder_layers", "decoder_layers")}
    return conv_s2s.logits(weights, source, target, **sizes)


def pad(sentences, side):
    """Tokens and mask [B, T]."""
    rows = [torch.tensor(sentence) for sentence in sentences]
    tokens = pad_sequence(rows, batch_first=True, padding_side=side)
    mask = pad_sequence([torch.ones_like(row) for row in rows], True, padding_side=side)
    return tokens, mask


every_network = pytest.mark.parametrize("options", [*RECURRENT.values(), *CONVOLUTIONAL.values()],
                                        ids=[*RECURRENT, *CONVOLUTIONAL])  # fmt: skip


@every_network
@pytest.mark.parametrize("side", ["right", "left"])
def test_logits_attentions_and_gradients_equal_the_loops(options, side):
    model = make(options)
    source, source_mask = pad(SOURCES, side)
    target, target_mask = pad(TARGETS, side)
    rows = target_mask.bool()
    columns = source_mask.bool()
    output = model(
        source, source_mask, target, target_mask, use_cache=False, output_attentions=True
    )
    directions = torch.randn(*output.logits.shape, dtype=torch.float64) * target_mask.unsqueeze(-1)
    (output.logits * directions).sum().backward()

    weights = {
        name: tensor.detach().clone().requires_grad_()
        for name, tensor in model.state_dict().items()
    }
    if model.config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.decoder.embed_tokens.weight"]
    total = torch.zeros((), dtype=torch.float64)
    for n, (sentence, translation) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        logits, attentions = expected(model, options, weights, sentence, translation)
        assert_close(output.logits[n, rows[n]], logits)
        for attention, expected_attention in zip(output.cross_attentions, attentions, strict=True):
            assert_close(attention[n, 0][rows[n]][:, columns[n]], expected_attention)
            assert_close(attention[n, 0][rows[n]].sum(-1), expected_attention.sum(-1))
        total = total + (logits * directions[n, rows[n]]).sum()
    total.backward()
    for name, parameter in model.named_parameters():
        assert_close(
            parameter.grad, weights[name].grad, msg=lambda message, name=name: f"{name} {message}"
        )


@every_network
def test_a_cache_of_a_fixed_size_is_refused(options):
    model = make(options)
    settings = {"max_new_tokens": 3, "pad_token_id": 0}
    with pytest.raises(
        ValueError, match="keeps features of the last positions, which a StaticCache"
    ):
        model.generate(torch.tensor(SOURCES[:1]), cache_implementation="static", **settings)
    expected = model.generate(torch.tensor(SOURCES[:1]), **settings)
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    assert torch.equal(model.generate(torch.tensor(SOURCES[:1]), cache=cache, **settings), expected)


@pytest.mark.parametrize(("kernel", "kept"), [(1, 1), (3, 2)])
@torch.no_grad()
def test_a_convolution_keeps_no_more_than_it_reads_again(kernel, kept):
    """At least one, as the library's windows do."""
    model = make({**CONVOLUTIONAL["k 3, 2 + 2"], "kernel_size": kernel})
    source, target = torch.tensor([SOURCES[0]]), torch.tensor([TARGETS[0]])
    cache = model.make_cache(num_beams=1)
    for step in target.split(1, dim=1):
        model(source, decoder_input_ids=step, cache=cache)
    assert cache.get_seq_length() == target.shape[1]
    sizes = {layer.keys.shape[2:].numel() for layer in cache.self_attention_cache.layers}
    assert sizes == {kept * model.config.hidden_size}


def test_checkpointed_layers_keep_nothing_in_a_cache():
    """Computed again in the backward pass, a layer would find its own inputs there."""
    source = torch.tensor(SOURCES[:1])
    gradients = []
    for checkpointed in (False, True):
        model = make(CONVOLUTIONAL["k 3, 2 + 2"]).train()
        if checkpointed:
            model.gradient_checkpointing_enable()
        model(
            source, decoder_input_ids=source, use_cache=checkpointed
        ).logits.square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert_close(*gradients)


def test_weight_normalised_layers_start_as_drawn():
    """The magnitudes are the norms of the directions, so that the first weights have the variances
    of section 3.5.
    """
    model = ConvS2SForConditionalGeneration(
        ConvS2SConfig(hidden_size=64, embed_dim=64, vocab_size=50, dropout=0.2)
    )
    convolution = model.model.encoder.layers[0].convolution.convolution
    assert_close(convolution.weight(), convolution.direction)
    assert convolution.weight().std().item() == pytest.approx((4 * 0.8 / (3 * 64)) ** 0.5, rel=0.03)


@pytest.mark.parametrize(
    ("config", "millions"),
    [
        (RnnSearchConfig(vocab_size=12000, decoder_vocab_size=9000, tie_word_embeddings=False), 6),
        (RnnSearchConfig(vocab_size=9000, decoder_vocab_size=12000, tie_word_embeddings=False), 7),
        (ConvS2SConfig(vocab_size=12000, decoder_vocab_size=9000), 21),
        (ConvS2SConfig(vocab_size=9000, decoder_vocab_size=12000), 22),
    ],
    ids=["RNNsearch De-En", "RNNsearch En-De", "ConvS2S De-En", "ConvS2S En-De"],
)
def test_published_sizes(config, millions):
    """Table 3 of Elbayad et al. (2018), with its vocabularies of about 12,000 German and 9,000
    English entries.
    """
    model_class = ConvS2SForConditionalGeneration
    if isinstance(config, RnnSearchConfig):
        model_class = RnnSearchForConditionalGeneration
    with torch.device("meta"):
        model = model_class(config)
    assert round(model.num_parameters() / 1e6) == millions


@every_network
def test_a_decoder_alone_asks_for_the_source(options):
    with pytest.raises(ValueError, match="`encoder_hidden_states` must be given"):
        make(options).get_decoder()(torch.tensor([[3]]))
