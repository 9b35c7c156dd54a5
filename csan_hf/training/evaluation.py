# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""State of one evaluation: the order of its rows, its loss by token, hypotheses and scores."""

from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from datasets import Dataset
from torch import Tensor

from csan_hf.data import example_lengths
from csan_hf.models.seq2seq_model import IGNORED_LABEL


class Evaluation:
    """One evaluation of a dataset, longest sentences first.

    Args:
        dataset: The tokenized dataset.
    """

    def __init__(self, dataset: Dataset) -> None:
        source_lengths, _ = example_lengths(dataset)
        self.dataset = dataset
        self.hypotheses: list[str] = []
        self.scores: dict[str, Any] = {}
        self.order: list[int] = np.argsort(-source_lengths, kind="stable").tolist()
        self._loss = 0.0  # summed over the target tokens of this process
        self._tokens = 0

    def restore_order(self, rows: object) -> Any:
        """Puts predictions or labels [N, T] into dataset order; anything but an array stays."""
        # Rows beyond the order are copies that even out the processes
        return rows[np.argsort(self.order)] if isinstance(rows, np.ndarray) else rows

    def add_loss(self, mean: float, labels: Tensor) -> None:
        """Adds the mean loss per target token of a batch with labels [B, I]."""
        tokens = int(labels.ne(IGNORED_LABEL).sum())
        if tokens:  # the loss of a batch of copies may be 0 / 0
            self._loss += mean * tokens
        self._tokens += tokens

    def mean_loss(self, accelerator: Accelerator) -> float | None:
        """Returns the loss per target token over all processes; None if no batch had labels.

        The library averages the means of batches, whatever their size.
        """
        sums = torch.tensor(
            [self._loss, self._tokens], dtype=torch.float32, device=accelerator.device
        )
        loss, tokens = accelerator.reduce(sums).tolist()
        return loss / tokens if tokens else None
