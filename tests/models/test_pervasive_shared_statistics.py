# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Batch normalisation over two processes equals one process with the whole batch."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tiny import grid as tiny_model


def batch() -> dict[str, torch.Tensor]:
    """Four pairs with padding; the halves hold different numbers of real cells."""
    generator = torch.Generator().manual_seed(3)
    source = torch.randint(2, 11, (4, 6), generator=generator)
    labels = torch.randint(2, 11, (4, 5), generator=generator)
    mask = torch.ones_like(source)
    mask[0, 3:] = 0
    mask[3, 5:] = 0
    labels[1, 2:] = -100
    return {"input_ids": source, "attention_mask": mask, "labels": labels}


def train_step(inputs: dict[str, torch.Tensor], group=None) -> dict[str, torch.Tensor]:
    """Gradients and running statistics after one step; the loss is a sum over tokens."""
    model = tiny_model(num_layers=2).double().train()
    model.synchronize_batch_norm(group)
    model(**inputs, num_items_in_batch=1).loss.backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    return found | dict(model.named_buffers())


def run_half(rank: int, address: str, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    half = {name: tensor[2 * rank : 2 * rank + 2] for name, tensor in batch().items()}
    found = train_step(half, dist.group.WORLD)
    for name, tensor in found.items():
        if "running" not in name and tensor.is_floating_point():
            dist.all_reduce(tensor)
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_equal_one(tmp_path):
    mp.spawn(run_half, args=(f"file://{tmp_path}/rendezvous", str(tmp_path)), nprocs=2)
    whole = train_step(batch())
    for rank in (0, 1):
        found = torch.load(tmp_path / f"{rank}.pt")
        assert found.keys() == whole.keys()
        for name, expected in whole.items():
            torch.testing.assert_close(found[name], expected, rtol=1e-9, atol=1e-11, msg=name)


@pytest.fixture
def alone(tmp_path):
    """A process group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_two_forwards_before_one_backward(alone):
    """Gradients are those of each forward's own statistics, which the other one has changed meanwhile."""
    found = []
    for group in (None, alone):
        model = tiny_model(num_layers=2).double().train()
        model.synchronize_batch_norm(group)
        halves = [{name: tensor[rows] for name, tensor in batch().items()} for rows in (slice(0, 2), slice(2, 4))]
        sum(model(**half).loss for half in halves).backward()
        found.append({name: parameter.grad for name, parameter in model.named_parameters()})
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-11)


def test_one_cell_is_refused(alone):
    """It has no variance, and would make the running one infinite."""
    model = tiny_model().train()
    model.synchronize_batch_norm(alone)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with pytest.raises(ValueError, match=r"at least 2 real cells .* got 1"):
        model(input_ids=torch.tensor([[1]]), labels=torch.tensor([[1]]))
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers() if "running" in name)
