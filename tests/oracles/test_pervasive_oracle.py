# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The whole network against the loop oracle: outputs, gradients, batch statistics, alignments,
parameter names.
"""

from itertools import product

import pytest
import torch
from reference import pervasive_attention as oracle
from tiny import (
    AGGREGATIONS,
    RESIDUAL,
    SHARED,
    TARGET_VOCABULARY,
    every_aggregation,
    every_mode,
    gradients,
    labels_of,
    padded_batch,
    padded_sources,
)
from tiny import grid as tiny_model
from torch import Tensor
from torch.testing import assert_close

from csan_hf.models.grid_norm import GridBatchNorm

# The last sentence is padded in source and target; no length is below the reach of the largest
# kernel (3 to a side).
PADDED = padded_batch((5, 3, 2), (3, 5, 1))
UNPADDED = padded_batch((4, 4), (4, 4))
# Padding on the left and in the middle: a cell is real or it is not, wherever it stands.
HOLES = padded_batch((5, 5, 5), (4, 4, 4))
HOLES["attention_mask"] = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 0, 1, 1], [1, 0, 0, 1, 0]])
HOLES["decoder_attention_mask"] = torch.tensor([[1, 1, 0, 1], [0, 0, 1, 1], [1, 1, 1, 1]])
# float64 is the sharp test. float32 divides by a batch's deviation in eight norms before a gradient
# arrives.
TOLERANCES = {
    torch.float64: (1e-9, 1e-9),
    torch.float32: (1e-5, 1e-4),
}  # outputs in eval mode, everything else

VARIANTS = {
    "tied": {},
    "untied": {"tie_word_embeddings": False},
    "shared and tied": SHARED,
    "shared and untied": {**SHARED, "tie_word_embeddings": False},
}


def _cases() -> dict[str, dict]:
    """Every aggregation, gate and kernel together; tying and sharing go round so that each meets
    each of these.
    """
    cases = {}
    for index, (aggregation, gated, kernel_size) in enumerate(
        product(AGGREGATIONS, (False, True), (1, 3, 7))
    ):
        variant = list(VARIANTS)[(index + index // 3 + index // 6) % len(VARIANTS)]
        name = f"{aggregation}, {'gated, ' if gated else ''}k={kernel_size}, {variant}"
        options = {"aggregation": aggregation, "gated": gated, "kernel_size": kernel_size}
        cases[name] = {**options, **VARIANTS[variant]}
        if not gated:
            cases[f"residual, {name}"] = {**options, **VARIANTS[variant], **RESIDUAL}
    return cases


CASES = _cases()


def leaves_of(model) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The state dict in float64, tied names as one leaf, and the leaves under their parameters'
    first names.
    """
    by_tensor = {id(p): p.detach().double().clone().requires_grad_() for p in model.parameters()}
    state = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        state[name] = by_tensor.get(id(tensor), tensor.detach().clone())
    return state, {name: by_tensor[id(p)] for name, p in model.named_parameters()}


def run_oracle(
    model, batch: dict[str, Tensor], state: dict[str, Tensor] | None = None
) -> oracle.Result:
    return oracle.run(
        model.state_dict() if state is None else state,
        model.config,
        batch["input_ids"],
        batch["attention_mask"],
        batch["decoder_input_ids"],
        batch["decoder_attention_mask"],
        training=model.training,
    )


def weigh(logits: dict[oracle.Row, Tensor]) -> Tensor:
    """A sum of all logits of all real rows, each with a random weight of its own."""
    generator = torch.Generator().manual_seed(11)
    total = 0.0
    for row in sorted(logits):
        weights = torch.randn(len(logits[row]), generator=generator, dtype=torch.float64)
        total = total + logits[row] @ weights.to(logits[row].dtype)
    return total


def assert_equals_oracle(
    options: dict, batch: dict[str, Tensor], training: bool, seed: int = 0
) -> None:
    """Logits and the gradients of all parameters, in float64 and in float32."""
    model = tiny_model(seed, **options).train(training)
    state, leaves = leaves_of(model)
    expected = run_oracle(model, batch, state).logits
    weigh(expected).backward()
    assert torch.stack(list(expected.values())).std() > 0.1, "outputs that differ"
    for dtype, (eval_tolerance, tolerance) in TOLERANCES.items():
        model = tiny_model(seed, **options).to(dtype).train(training)
        outputs = model(**batch, use_cache=False).logits
        assert outputs.dtype == dtype
        actual = {row: outputs[row] for row in expected}
        bound = tolerance if training else eval_tolerance
        for row in expected:
            assert_close(actual[row].double(), expected[row], rtol=bound, atol=bound)
        with torch.no_grad():
            without_gradients = (
                tiny_model(seed, **options).to(dtype).train(training)(**batch).logits
            )
        for row in expected:
            assert_close(without_gradients[row].double(), expected[row], rtol=bound, atol=bound)
        weigh(actual).backward()
        for name, parameter in model.named_parameters():
            gradient, expected_gradient = (
                torch.zeros_like(p) if p.grad is None else p.grad for p in (parameter, leaves[name])
            )
            assert_close(
                gradient.double(),
                expected_gradient,
                rtol=tolerance,
                atol=tolerance,
                msg=lambda text, name=name: f"{name}: {text}",
            )


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
@every_mode
def test_padded_batch(options, training):
    assert_equals_oracle(options, PADDED, training)


@every_aggregation
@pytest.mark.parametrize(
    ("batch", "gated"), [(UNPADDED, "average"), (HOLES, "max")], ids=["unpadded", "holes"]
)
@every_mode
def test_other_paddings(aggregation, batch, gated, training):
    options = {"aggregation": aggregation, "kernel_size": 3, "gated": aggregation == gated}
    assert_equals_oracle(options, batch, training, seed=2)


@every_mode
@pytest.mark.parametrize(
    "options",
    [
        {"position_embeddings": "learned"},
        {"position_embeddings": "learned", "gated": True, "aggregation": "max_attention", **SHARED},
        {"num_layers": 4, "kernel_size": 3},
        {"num_layers": 1, "growth_rate": 4, "bottleneck_factor": 2, "aggregation": "attention"},
        {"batch_norm_eps": 0.3, "batch_norm_momentum": 0.4},
        {
            "position_embeddings": "sinusoidal",
            "scale_embedding": True,
            **RESIDUAL,
            "aggregation": "gated_max",
        },
        {
            "position_embeddings": "learned",
            "scale_embedding": True,
            **RESIDUAL,
            **SHARED,
            "num_layers": 4,
        },
    ],
    ids=[
        "positions",
        "positions, shared",
        "deeper",
        "another bottleneck",
        "another epsilon",
        "residual, sinusoids",
        "residual, learned positions",
    ],
)
def test_other_sizes(options, training):
    assert_equals_oracle(options, PADDED, training, seed=3)


@every_mode
@pytest.mark.parametrize("frozen", ["embed", "conv1", "conv2", "norm", "transition", "decoder"])
def test_frozen_parameters(frozen, training):
    """Freezing some parameters changes the others' gradients in nothing; a frozen norm is one in
    eval mode.
    """
    gradients = []
    for freeze in (False, True):
        model = (
            tiny_model(gated=True, kernel_size=3, aggregation="max_attention")
            .double()
            .train(training)
        )
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not (freeze and frozen in name))
        if frozen in ("norm", "decoder"):
            for module in model.modules():
                if isinstance(module, GridBatchNorm):
                    module.training = training and freeze
        model(**PADDED).logits[PADDED["decoder_attention_mask"].bool()].square().sum().backward()
        gradients.append(
            {name: p.grad for name, p in model.named_parameters() if frozen not in name}
        )
        assert all(
            (p.grad is None) == (freeze and frozen in name) for name, p in model.named_parameters()
        )
    assert_close(gradients[1], gradients[0], rtol=1e-9, atol=1e-9)


@every_mode
def test_two_forwards_before_their_backwards(training):
    """What a forward keeps for its backward is its own, and a backward may be repeated."""
    model = tiny_model(kernel_size=3).double().train(training)

    def gradients(*losses: Tensor) -> dict[str, Tensor]:
        model.zero_grad()
        for loss in losses:
            loss.backward(retain_graph=True)
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    losses = []
    for batch in (PADDED, UNPADDED):
        losses.append(model(**batch).logits[batch["decoder_attention_mask"].bool()].square().sum())
    both = gradients(losses[1], losses[0])
    first = gradients(losses[0])
    second = gradients(losses[1])
    expected = {name: first[name] + second[name] for name in both}
    assert_close(both, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("momentum", [0.1, 0.4])
@pytest.mark.parametrize("batch", [PADDED, UNPADDED, HOLES], ids=["padded", "unpadded", "holes"])
@pytest.mark.parametrize("gated", [False, True])
def test_running_statistics(batch, gated, momentum):
    """new = (1 - momentum) * old + momentum * (mean, unbiased variance) over the batch's real
    cells.
    """
    model = tiny_model(kernel_size=3, gated=gated, batch_norm_momentum=momentum).double().train()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    statistics = run_oracle(model, batch).statistics
    model(**batch)
    after = dict(model.named_buffers())
    cells = int((batch["attention_mask"].sum(1) * batch["decoder_attention_mask"].sum(1)).sum())
    assert {name.rpartition(".")[0] for name in after if name.endswith("running_mean")} == set(
        statistics
    )
    for name, norm_statistics in statistics.items():
        assert norm_statistics.count == cells
        mean, variance = norm_statistics.running(
            before[f"{name}.running_mean"], before[f"{name}.running_var"], momentum
        )
        assert_close(after[f"{name}.running_mean"], mean, rtol=1e-9, atol=1e-9)
        assert_close(after[f"{name}.running_var"], variance, rtol=1e-9, atol=1e-9)
        assert after[f"{name}.num_batches_tracked"] == before[f"{name}.num_batches_tracked"] + 1


@every_aggregation
@pytest.mark.parametrize("batch", [PADDED, HOLES], ids=["padded", "holes"])
@pytest.mark.parametrize("variant", [*VARIANTS.values(), RESIDUAL], ids=[*VARIANTS, "residual"])
@torch.no_grad()
def test_alignments(aggregation, batch, variant):
    """cross_attentions are rho ("attention") or the contributions alpha to the logit of the label
    (the others).
    """
    model = tiny_model(aggregation=aggregation, kernel_size=3, **variant).double()
    labels = torch.randint(2, TARGET_VOCABULARY, batch["decoder_input_ids"].shape)
    outputs = model(**batch, labels=labels, output_attentions=True)
    (alignments,) = outputs.cross_attentions
    B, J = batch["input_ids"].shape
    assert alignments.shape == (B, 1, labels.shape[1], J)
    result = run_oracle(model, batch)
    right = result.attention
    if aggregation != "attention":
        right = oracle.alignment(model.state_dict(), model.config, result, labels)
    for b, i in result.logits:
        for j in range(J):
            expected = right.get((b, i, j), torch.tensor(0.0, dtype=torch.float64))
            assert_close(alignments[b, 0, i, j], expected, rtol=1e-9, atol=1e-9)


def test_torch_func_differentiates():
    model = tiny_model().double()
    batch = {**padded_sources((5, 3, 4)), "labels": labels_of((4, 3, 5))}

    def loss_of(parameters: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, parameters, (), batch).loss

    functional_gradients = torch.func.grad(loss_of)(dict(model.named_parameters()))
    model(**batch).loss.backward()
    assert_close(functional_gradients, gradients(model), rtol=1e-6, atol=1e-6)
