# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Batch normalisation over two processes equals one process with the whole batch."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tiny import gradients, labels_of, padded_sources, statistics
from tiny import grid as tiny_model
from torch.testing import assert_close

from csan_hf.models.grid_norm import BACKWARD

# Four pairs with padding; the halves hold different numbers of real cells.
BATCH = {**padded_sources((3, 6, 6, 5)), "labels": labels_of((5, 2, 5, 5))}
HALVES = [
    {name: tensor[:2] for name, tensor in BATCH.items()},
    {name: tensor[2:] for name, tensor in BATCH.items()},
]


def train_step(inputs: dict[str, torch.Tensor], group=None) -> dict[str, torch.Tensor]:
    """Gradients and running statistics after one step; the loss is a sum over tokens."""
    model = tiny_model(num_layers=2).double().train()
    model.synchronize_batch_norm(group)
    model(**inputs, num_items_in_batch=1).loss.backward()
    return gradients(model) | dict(model.named_buffers())


def run_half(rank: int, address: str, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    steps = [train_step(HALVES[rank], dist.group.WORLD)]
    BACKWARD.clear()  # autograd differentiates the second step
    steps.append(train_step(HALVES[rank], dist.group.WORLD))
    for tensors in steps:
        for name, tensor in tensors.items():
            if "running" not in name and tensor.is_floating_point():
                dist.all_reduce(tensor)
    torch.save(steps, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_equal_one(tmp_path):
    """With the backward pass by hand and with autograd's."""
    arguments = (f"file://{tmp_path}/rendezvous", str(tmp_path))
    mp.start_processes(run_half, arguments, nprocs=2, start_method="fork")
    whole = train_step(BATCH)
    for rank in (0, 1):
        steps = torch.load(tmp_path / f"{rank}.pt")
        assert_close(steps, [whole, whole], rtol=1e-9, atol=1e-11)


@pytest.fixture
def alone(tmp_path):
    """A process group of this process alone."""
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_two_forwards_before_one_backward(alone):
    """Gradients are those of each forward's own statistics, which the other one has changed
    meanwhile.
    """
    group_gradients = []
    for group in (None, alone):
        model = tiny_model(num_layers=2).double().train()
        model.synchronize_batch_norm(group)
        sum(model(**half).loss for half in HALVES).backward()
        group_gradients.append(gradients(model))
    assert_close(group_gradients[1], group_gradients[0], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("shared", [False, True])
def test_one_cell_is_refused_in_training(alone, shared):
    """It has no unbiased variance, and would make the running one infinite."""
    model = tiny_model().train()
    model.synchronize_batch_norm(alone if shared else None)
    before = statistics(model)
    single_cell = {"input_ids": torch.tensor([[1]]), "labels": torch.tensor([[1]])}
    with pytest.raises(ValueError, match=r"at least 2 real cells .* got 1" if shared else "got 1"):
        model(**single_cell)
    assert_close(statistics(model), before, rtol=0, atol=0)
    assert model.eval()(**single_cell).logits.isfinite().all()
