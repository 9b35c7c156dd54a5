"""Code that both model folders need is repeated, as each must load alone: the copies are held equal here."""

import inspect

import torch

from csan_hf.csan import checkpoint_files, modeling_csan
from csan_hf.csan.attention import CsanSinusoidalPositionalEmbedding
from csan_hf.pervasive_attention import checkpoint_files as grid_checkpoint_files
from csan_hf.pervasive_attention import seq2seq_model
from csan_hf.pervasive_attention.embeddings import SinusoidalPositionalEmbedding


def test_labels_are_shifted_alike():
    copies = [inspect.getsource(module.shift_tokens_right) for module in (modeling_csan, seq2seq_model)]
    assert copies[0] == copies[1]


def test_what_completes_a_checkpoint_is_alike():
    assert inspect.getsource(checkpoint_files) == inspect.getsource(grid_checkpoint_files)


def test_the_sinusoids_are_alike():
    for width in (6, 7):
        first, second = CsanSinusoidalPositionalEmbedding(9, width), SinusoidalPositionalEmbedding(9, width)
        for length, offset in ((5, 0), (3, 6), (4, 20)):
            assert torch.equal(first(length, offset), second(length, offset))


def test_a_config_that_asks_for_a_million_positions_gets_those_that_are_used():
    for kind in (CsanSinusoidalPositionalEmbedding, SinusoidalPositionalEmbedding):
        positions = kind(1_000_000, 4)
        assert positions.weight.shape == (16_384, 4)
        everything = positions.create_weight(20_000)
        for length, offset in ((3, 16_381), (3, 16_382), (5, 19_995), (16_384, 0)):
            assert torch.equal(positions(length, offset), everything[offset : offset + length])
        assert positions(1, 999_999).shape == (1, 4)
