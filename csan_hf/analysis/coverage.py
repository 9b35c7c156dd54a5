# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Which sentences of a source its translation seems to leave out: those that cross-attention hardly
covers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .aligned_pairs import Alignment


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
    # Without white space, which the first token of the next sentence may begin with
    ends = [len("".join(sentences[: number + 1]).rstrip()) for number in range(len(sentences))]
    source, target = (
        np.array([word is not None for word in text.word_of_token], dtype=bool)
        for text in (alignment.source, alignment.target)
    )
    of_token = np.searchsorted(ends, np.array(alignment.source.starts)[source], side="right")
    own = of_token[:, None] == np.arange(len(sentences))  # [tokens, sentences]
    attention = alignment.matrix[np.ix_(target, source)] @ own
    covering = (
        np.bincount(attention.argmax(axis=1), minlength=len(sentences)) if source.any() else 0
    )
    return np.flatnonzero(5 * covering < own.sum(axis=0)).tolist()
