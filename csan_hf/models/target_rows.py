# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Which target rows are real where no mask is given, and which word a row predicts.

Rows that are not real must not enter the statistics of batch normalisation. Shapes: B sentences, I target rows.
"""

import torch

from .configuration_pervasive_attention import PervasiveAttentionConfig


def rows_with_labels(labels: torch.Tensor) -> torch.Tensor:
    """[B, I], True up to the last label of each row that is not -100."""
    return _up_to_last(labels.ne(-100))


def rows_before_padding(decoder_input_ids: torch.Tensor, config: PervasiveAttentionConfig) -> torch.Tensor:
    """[B, I], True for the start token and what follows, up to trailing padding.

    A last end of sentence is not real, either: it is there because a longer sentence is in the batch, and no token
    follows it. An end of sentence before other tokens counts as real.
    """
    following = decoder_input_ids[:, 1:]
    real = torch.ones_like(decoder_input_ids, dtype=torch.bool)
    unpadded = _up_to_last(following.ne(config.pad_token_id))
    ends = config.eos_token_id
    if ends is not None:
        is_end = torch.isin(following, torch.tensor(ends, device=following.device).reshape(-1))
        is_last = unpadded & ~torch.nn.functional.pad(unpadded[:, 1:], (0, 1))
        unpadded = unpadded & ~(is_end & is_last)
    real[:, 1:] = unpadded
    return real


def _up_to_last(chosen: torch.Tensor) -> torch.Tensor:
    """[B, T], True up to the last True of each row."""
    return chosen.flip(1).cumsum(1).flip(1).gt(0)


def words_to_explain(
    labels: torch.Tensor | None,
    decoder_input_ids: torch.Tensor | None,
    decoder_attention_mask: torch.Tensor | None,
    logits: torch.Tensor,
) -> torch.Tensor:
    """The word [B, I] whose logit each row's alignment explains: the label, the next input, or the likeliest word."""
    words = logits.argmax(dim=-1)
    if decoder_input_ids is not None and decoder_input_ids.shape[1] > 1:
        following = decoder_input_ids[:, 1:]
        if decoder_attention_mask is not None:
            real = decoder_attention_mask[:, -following.shape[1] :].bool()
            following = torch.where(real, following, words[:, :-1])
        words = torch.cat([following, words[:, -1:]], dim=1)
    if labels is not None:
        words = torch.where(labels.eq(-100), words, labels)
    return words
