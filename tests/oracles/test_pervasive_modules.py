# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The dense block's modules are what they seem: modes, momentum, hooks, freezing, copies and types
act on them.
"""

import copy
import io
import threading

import pytest
import torch
from tiny import (
    every_mode,
    gradients,
    labels_of,
    padded_batch,
    padded_sources,
    recompute_activations,
    statistics,
)
from tiny import grid as tiny_model
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.testing import assert_close
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from csan_hf.models.dense_block import DenseBlock

BATCH = padded_batch((5, 3, 2), (3, 5, 1))
REAL = BATCH["decoder_attention_mask"].bool()


def block_of(model) -> DenseBlock:
    return model.model.decoder.dense_block


def moved(model, before: dict[str, Tensor]) -> set[str]:
    return {name for name, now in statistics(model).items() if not torch.equal(now, before[name])}


def step(model) -> dict[str, Tensor]:
    """Logits of the real rows, gradients and statistics of a step."""
    logits = model(**BATCH, use_cache=False).logits[REAL]
    logits.square().sum().backward()
    return {"logits": logits.detach(), **statistics(model), **gradients(model)}


def watched(model):
    """The model with a hook, so that its modules are called one by one."""
    block_of(model).layers[0].norm1.register_forward_hook(lambda *_: None)
    return model


def checkpointed(model):
    recompute_activations(model)
    return model


@every_mode
@pytest.mark.parametrize(
    "options", [{"kernel_size": 3, "gated": True}, {"kernel_size": 5, "num_layers": 3}]
)
def test_shortcuts_and_checkpointing_compute_what_the_modules_say(options, training):
    """Neither logits nor gradients change, and the statistics are brought up to date once."""
    expected = step(watched(tiny_model(**options).double().train(training)))
    for model in (tiny_model(**options).double(), checkpointed(tiny_model(**options).double())):
        assert_close(step(model.train(training)), expected, rtol=1e-9, atol=1e-9)
    with torch.no_grad():
        logits = tiny_model(**options).double().train(training)(**BATCH).logits[REAL]
    assert_close(logits, expected["logits"], rtol=1e-9, atol=1e-9)


@every_mode
@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "checkpointed"])
def test_a_checkpoints_own_code_trains_to_the_same_gradients(training, checkpointing, tmp_path):
    """It has no hand-written backward pass: autograd differentiates the modules."""
    options = {"kernel_size": 3, "gated": True, "num_layers": 3}
    tiny_model(**options).double().save_pretrained(tmp_path)
    assert not (tmp_path / "dense_backward.py").exists()
    name = "modeling_pervasive_attention.PervasiveAttentionForConditionalGeneration"
    own_class = get_class_from_dynamic_module(name, tmp_path)
    assert own_class.__module__.startswith("transformers_modules")
    model = own_class.from_pretrained(tmp_path, dtype="auto").train(training)
    if checkpointing:
        checkpointed(model)
    expected = step(tiny_model(**options).double().train(training))
    assert_close(step(model), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("part", ["norm1", "conv1", "norm2", "conv2"])
@every_mode
def test_hooks_act(part, training):
    model = tiny_model(kernel_size=3).train(training)
    before = model(**BATCH, use_cache=False).logits[REAL]
    layers = block_of(model).layers
    getattr(layers[1], part).register_forward_hook(lambda module, inputs, output: output.sin())
    seen = []
    getattr(layers[0], part).register_full_backward_hook(
        lambda module, inputs, outputs: seen.append(outputs[0])
    )
    logits = model(**BATCH, use_cache=False).logits
    assert (logits[REAL] - before).abs().max() > 1e-3
    logits.square().sum().backward()
    [gradient] = seen
    assert gradient.any()


def test_a_replaced_module_is_called():
    model = tiny_model(kernel_size=3)
    layer = block_of(model).layers[0]
    expected = step(tiny_model(kernel_size=3))

    class Twice(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, cells):
            return (self.inner(cells) + self.inner(cells)) / 2

    layer.conv1 = Twice(layer.conv1)
    assert_close(step(model)["logits"], expected["logits"], rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        layer.conv1 = nn.Linear(layer.conv1.inner.in_features, layer.conv1.inner.out_features)
    assert (step(model)["logits"] - expected["logits"]).abs().max() > 1e-3


@pytest.mark.parametrize("how", ["eval", "frozen"])
def test_one_norm_rests(how):
    """In eval mode, or without a trainable parameter: its statistics stay and are what is
    normalised with.
    """
    results = []
    name = "model.decoder.dense_block.layers.1.norm2"
    for model in (
        tiny_model(kernel_size=3).double().train(),
        watched(tiny_model(kernel_size=3).double().train()),
    ):
        norm = model.get_submodule(name)
        before = statistics(model)
        norm.eval() if how == "eval" else norm.requires_grad_(False)
        results.append(step(model))
        assert before.keys() - moved(model, before) == {
            f"{name}.running_mean",
            f"{name}.running_var",
        }
    assert_close(*results, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("slow", [False, True], ids=["shortcut", "modules"])
def test_a_frozen_network_moves_nothing(slow):
    """An adapter on it is trained with the statistics that it will be used with."""
    model = tiny_model(kernel_size=3).train().requires_grad_(False)
    model.lm_head.requires_grad_(True)
    before = statistics(model)
    step(watched(model) if slow else model)
    assert model.refresh_batch_statistics([BATCH]) == 1
    assert not moved(model, before)


def test_a_state_dict_with_the_former_names_of_statistics_loads():
    model, loaded = tiny_model(seed=1), tiny_model()
    former = {
        name.replace("dense_block.feature_norm.", "dense_block."): tensor
        for name, tensor in model.state_dict().items()
    }
    assert former.keys() != model.state_dict().keys()
    loaded.load_state_dict(former)
    assert_close(statistics(loaded), statistics(model), rtol=0, atol=0)


def test_torchs_update_bn_fills_averaged_weights():
    model = tiny_model(kernel_size=3).double().train()
    averaged = AveragedModel(model, use_buffers=False)
    batches = [BATCH, padded_batch((4, 4), (4, 4))]

    class Unpack(nn.ModuleList):
        def forward(self, batch):
            return self[0](**batch)

    update_bn(batches, Unpack([averaged]))
    model.refresh_batch_statistics(batches)
    assert_close(statistics(averaged.module), statistics(model), rtol=1e-9, atol=1e-12)


def test_copies_of_a_model_that_shares_statistics_share_none():
    """A process group can be neither copied nor saved."""
    model = tiny_model()
    model.synchronize_batch_norm(threading.Lock())
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for duplicate in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert block_of(duplicate).feature_norm.process_group is None
        assert block_of(duplicate.requires_grad_(False)).feature_norm.is_frozen, (
            "by its own weights"
        )
        assert not block_of(model).feature_norm.is_frozen
        assert torch.equal(duplicate(**BATCH).logits, model(**BATCH).logits)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_statistics_are_float32_in_every_type(dtype, tmp_path):
    model = tiny_model()
    before = statistics(model)
    model.save_pretrained(tmp_path)
    for cast_model in (tiny_model().to(dtype), type(model).from_pretrained(tmp_path, dtype=dtype)):
        assert cast_model.lm_head.weight.dtype == dtype
        assert all(buffer.dtype == torch.float32 for buffer in statistics(cast_model).values())
        assert_close(statistics(cast_model), before, rtol=0, atol=0)
    if dtype == torch.bfloat16:
        cast_model.train()(**BATCH).logits.float().square().sum().backward()
        assert all(buffer.dtype == torch.float32 for buffer in statistics(cast_model).values())
    assert all(
        buffer.dtype == torch.float64 for buffer in statistics(tiny_model().double()).values()
    )


def batches(count: int) -> list[dict[str, Tensor]]:
    return [
        {**padded_sources((5 + number, 4, 3)), "labels": labels_of((4, 2, 3))}
        for number in range(count)
    ]


def test_dropout_is_a_module_that_may_act_in_evaluation():
    """Monte-Carlo dropout (Gal and Ghahramani, 2016)."""
    model = tiny_model(dropout=0.5).eval()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.train()
    assert not torch.equal(model(**BATCH).logits, model(**BATCH).logits)


def test_refreshed_statistics_are_averages_over_the_batches():
    model = tiny_model().double()
    data = batches(4)
    singles = []
    for batch in data:
        model.refresh_batch_statistics([batch])
        singles.append(statistics(model))
    assert model.refresh_batch_statistics(iter(data)) == 4
    expected = {}
    for name in singles[0]:
        expected[name] = torch.stack([single[name] for single in singles]).mean(0)
    assert_close(statistics(model), expected, rtol=1e-9, atol=1e-12)


def test_refreshing_statistics_changes_nothing_else():
    """Neither weights, modes and momenta, nor a norm in eval mode."""
    model = tiny_model().train()
    name = "model.decoder.dense_block.layers.1.norm2"
    model.get_submodule(name).eval()
    before = statistics(model)
    weights = [parameter.clone() for parameter in model.parameters()]
    modes = [module.training for module in model.modules()]
    assert model.refresh_batch_statistics([]) == 0
    assert not moved(model, before)
    model.refresh_batch_statistics(batches(2))
    assert before.keys() - moved(model, before) == {f"{name}.running_mean", f"{name}.running_var"}
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(*pair) for pair in zip(weights, model.parameters(), strict=True))
    assert model.model.decoder.final_norm.momentum == model.config.batch_norm_momentum
