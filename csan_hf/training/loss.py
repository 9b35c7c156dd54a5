# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The training loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


class LabelSmoothedCrossEntropy:
    """Cross-entropy per target token with label smoothing, for the Trainer's `compute_loss_func`.

    The smoothing is torch's own (Szegedy et al. 2016; Vaswani et al. 2017, section 5.4): the target
    distribution is (1 - epsilon) on the reference token plus epsilon / V on each of the V entries of the
    vocabulary. Under gradient accumulation the sum over a micro-batch is divided by the number of target
    tokens of the whole batch, so that four micro-batches add up to the loss of one large batch.

    Args:
        epsilon: Smoothing mass, in [0, 1); 0 is plain cross-entropy.
    """

    def __init__(self, epsilon: float = 0.0) -> None:
        self.epsilon = epsilon

    def __call__(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """Computes the loss.

        Args:
            outputs: A model output with `logits` [B, I, V].
            labels: Reference token ids [B, I]; -100 is ignored.
            num_items_in_batch: Target tokens in the whole accumulated batch; None: those in `labels`.

        Returns:
            A scalar; 0 (with a gradient of 0) where no label counts.
        """
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        total = F.cross_entropy(
            logits.reshape(-1, logits.shape[-1]).float(),
            labels.reshape(-1),
            ignore_index=-100,
            reduction="sum",
            label_smoothing=self.epsilon,
        )
        if num_items_in_batch is None:
            num_items_in_batch = labels.ne(-100).sum()
        if isinstance(num_items_in_batch, Tensor):
            # Under DataParallel the count arrives once per replica.
            count = num_items_in_batch.to(total.device).reshape(-1)[0]
        else:
            count = torch.tensor(num_items_in_batch, device=total.device)
        return total / count.clamp(min=1)
