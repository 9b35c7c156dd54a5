# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The training loss: smoothed labels and teachers, in pieces, so that the logits of all target
tokens are never in memory at once.

Shapes: B sentences, I target positions, N target positions of all sentences, K tokens that teachers
know, V entries of the vocabulary, d width.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import Node

from csan_hf.models.layers import is_plain
from csan_hf.models.seq2seq_model import IGNORED_LABEL, count_labels

# Logits of a piece. A CPU's allocator keeps 16 MiB for the next piece and gives more back; a GPU
# wants few large products
PIECE_ON_CPU = 2**22
PIECE_ELSEWHERE = 2**25

Projection = Callable[[Tensor], Tensor]
"""Logits [..., V] of states [..., d], position by position."""


class TaughtLabels(NamedTuple):
    """Labels [B, I]; with teachers their likeliest tokens and the probabilities of these [B, I, K],
    0 where there is no label, and perhaps weights [B, I]. None may only be followed by None.
    """

    labels: Tensor
    tokens: Tensor | None = None
    probabilities: Tensor | None = None
    weights: Tensor | None = None


class LabelSmoothedCrossEntropy:
    """Cross-entropy per target token with label smoothing, for the Trainer's `compute_loss_func`.

    The smoothing is torch's own (Vaswani et al. 2017, section 5.4): 1 - epsilon on the reference
    token plus epsilon / V on each of the V entries of the vocabulary. Under gradient accumulation
    the sum over a micro-batch is divided by the target tokens of the whole batch, so that
    micro-batches add up to the loss of one large batch.

    With teachers the loss of a token is its pair's weight times [(1 - w) · smoothed cross-entropy +
    w · T² · cross-entropy of the teachers' distribution and softmax(logits / T)]. T is the
    temperature, whose square keeps the size of the gradients (Hinton et al., 2015, section 2).

    Args:
        epsilon: Smoothing mass, in [0, 1); 0 is plain cross-entropy.
        teacher_weight: w, in (0, 1].
        teacher_temperature: Temperature of the teachers' part; theirs, too.
    """

    def __init__(
        self,
        epsilon: float = 0.0,
        *,
        teacher_weight: float = 0.5,
        teacher_temperature: float = 1.0,
    ) -> None:
        self.epsilon = epsilon
        self.teacher_weight = teacher_weight
        self.teacher_temperature = teacher_temperature

    def __call__(
        self,
        outputs: Mapping[str, Tensor],
        labels: Tensor | TaughtLabels,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Computes the loss.

        Args:
            outputs: A model output with `logits` [B, I, V].
            labels: Reference token ids [B, I]; -100 is ignored. Or those with what teachers say.
            num_items_in_batch: Target tokens in the whole accumulated batch; None: those in
                `labels`.

        Returns:
            A scalar; 0 (with a gradient of 0) where no label counts.
        """
        taught = TaughtLabels(labels) if isinstance(labels, Tensor) else labels
        logits = outputs["logits"].flatten(0, 1)
        targets = _flat_targets(taught, logits.device)
        # In pieces, as `summed` copies logits to float32
        total = sum_in_pieces(self.summed, lambda piece: piece, logits, targets)
        return total / _count(taught, num_items_in_batch, logits.device)

    def summed(
        self,
        logits: Tensor,
        labels: Tensor,
        tokens: Tensor | None = None,
        probabilities: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """The sum over target positions: logits [N, V], labels [N], what teachers say [N, K],
        weights [N].
        """
        precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
        losses = F.cross_entropy(
            precise, labels.long(), reduction="none", label_smoothing=self.epsilon
        )
        if tokens is not None and probabilities is not None:
            temperature = self.teacher_temperature
            if temperature != 1:  # a division copies all logits
                precise = precise / temperature
            kept = precise.log_softmax(dim=-1).gather(-1, tokens.long())
            on_teachers = -(kept * probabilities).sum(dim=-1) * temperature**2
            losses = torch.lerp(losses, on_teachers, self.teacher_weight)
        if weights is not None:
            losses = losses * weights
        return losses.sum()


class TrainingLoss(NamedTuple):
    """The argument `training_loss` of a forward pass: a loss that needs no logits of the model.

    The output layer is used within the forward pass, as several processes require. A named tuple,
    as DataParallel gives each GPU its rows of one.
    """

    criterion: LabelSmoothedCrossEntropy
    taught: TaughtLabels
    num_items_in_batch: Tensor | int | None

    def __call__(self, states: Tensor, project: Projection) -> Tensor:
        """The loss of the decoder's states [B, I, d], as the criterion's of their logits."""
        flat_states = states.flatten(0, 1)
        targets = _flat_targets(self.taught, states.device)
        if is_plain(states):  # elsewhere counting labels would wait for the GPU
            is_label = targets[0].ne(IGNORED_LABEL)
            flat_states = flat_states[is_label]
            targets = [target[is_label] for target in targets]
        total = sum_in_pieces(self.criterion.summed, project, flat_states, targets)
        return total / _count(self.taught, self.num_items_in_batch, states.device)


def _flat_targets(taught: TaughtLabels, device: torch.device) -> list[Tensor]:
    return [target.to(device).flatten(0, 1) for target in taught if target is not None]


def _count(
    taught: TaughtLabels, num_items_in_batch: Tensor | int | None, device: torch.device
) -> Tensor:
    if isinstance(num_items_in_batch, Tensor):
        # Under DataParallel the count arrives once per replica
        num_items_in_batch = num_items_in_batch.reshape(-1)[0]
    return count_labels(taught.labels, num_items_in_batch).to(device)


def sum_in_pieces(
    summed: Callable[..., Tensor], project: Projection, states: Tensor, targets: Sequence[Tensor]
) -> Tensor:
    """`summed(project(states), *targets)` with no more than a piece of the logits in memory.

    Args:
        summed: Loss of logits [N, V] and targets, a sum over positions.
        project: The output layer.
        states: [N, d].
        targets: [N, ...].
    """
    with torch.enable_grad():
        no_logits = project(states[:0].detach())  # has the width, and the graph to parameters
    logits_at_once = PIECE_ON_CPU if states.device.type == "cpu" else PIECE_ELSEWHERE
    size = max(1, logits_at_once // no_logits.shape[-1])
    if len(states) <= size:
        return summed(project(states), *targets)
    pieces = zip(*(tensor.split(size) for tensor in (states.detach(), *targets)), strict=True)
    return _add_pieces(summed, project, list(pieces), states, _parameters_of(no_logits.grad_fn))


@torch.compiler.disable  # the compiler cannot follow gradients within a forward pass
def _add_pieces(
    summed: Callable[..., Tensor],
    project: Projection,
    pieces: Sequence[tuple[Tensor, ...]],
    states: Tensor,
    parameters: Sequence[Tensor],
) -> Tensor:
    return _SumOfPieces.apply(summed, project, pieces, states, *parameters)


class _SumOfPieces(torch.autograd.Function):
    """Adds up the losses of pieces, and in the same pass their gradients: nothing of a piece is
    kept, nothing computed twice.
    """

    @staticmethod
    def forward(
        ctx: Any,
        summed: Callable[..., Tensor],
        project: Projection,
        pieces: Sequence[tuple[Tensor, ...]],
        states: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        losses = []
        state_gradients = []
        parameter_gradients: list[Tensor] = []
        for piece, *targets in pieces:
            piece.requires_grad_()
            with torch.enable_grad():
                loss = summed(project(piece), *targets)
            state_gradient, *gradients = torch.autograd.grad(loss, [piece, *parameters])
            losses.append(loss.detach())
            state_gradients.append(state_gradient)
            if parameter_gradients:
                torch._foreach_add_(parameter_gradients, gradients)
            else:
                # Sums of bfloat16 would lose digits; autograd casts back
                parameter_gradients = [
                    gradient.to(torch.promote_types(gradient.dtype, torch.float32))
                    for gradient in gradients
                ]
        ctx.gradients = [torch.cat(state_gradients), *parameter_gradients]
        return torch.stack(losses).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        return (None, None, None, *(of_input * gradient for of_input in ctx.gradients))


def _parameters_of(node: Node | None) -> list[Tensor]:
    """The parameters that gradients of a computation flow to, whichever modules hold them."""
    parameters = []
    nodes = [node]
    seen = set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            parameters.append(node.variable)
        nodes += [earlier for earlier, _ in node.next_functions]
    return parameters
