# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Source sentences that a translation seems to leave out: cross-attention hardly covers them."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from .alignment import Alignment

TOKENS_PER_COVERING_TOKEN = 5


def uncovered_sentences(alignment: Alignment, sentences: Sequence[str]) -> list[int]:
    """Finds the sentences of a source that its translation hardly attends to (coverage: Tu et al.,
    ACL 2016).

    A target token belongs to the source sentence that gets most of its attention. A sentence is
    covered if there is a target token for every five of its own.

    Args:
        alignment: Of the source and its translation.
        sentences: The sentences, which joined as they are make the source.

    Returns:
        The numbers of the sentences that are not covered, from 0; an empty sentence is.
    """
    source = np.array(alignment.source.is_part_of_word(), dtype=bool)
    target = np.array(alignment.target.is_part_of_word(), dtype=bool)
    # Without white space, which the first token of the next sentence may begin with
    ends = [len(text.rstrip()) for text in accumulate(sentences)]
    starts = np.array(alignment.source.starts)[source]
    sentence_of_token = np.searchsorted(ends, starts, side="right")
    membership = sentence_of_token[:, None] == np.arange(len(sentences))  # [tokens, sentences]
    attention = alignment.matrix[np.ix_(target, source)] @ membership
    covering = np.bincount(attention.argmax(axis=1), minlength=len(sentences))
    tokens = membership.sum(axis=0)
    return np.flatnonzero(TOKENS_PER_COVERING_TOKEN * covering < tokens).tolist()
