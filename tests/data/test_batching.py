# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
import math
from itertools import chain

import numpy as np
import pytest
from accelerate import skip_first_batches
from accelerate.data_loader import prepare_data_loader
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from csan_hf.data import MixedBatchSampler, TokenBatchSampler, example_lengths, forward_set_epoch


def caption_lengths(count, mean=14, deviation=0.35):
    """Lengths distributed like those of image captions: right-skewed, the two sides correlated."""
    rng = np.random.RandomState(0)
    source = np.clip(np.exp(rng.normal(math.log(mean), deviation, count)).round(), 3, 100)
    target = np.clip((source * rng.normal(1.1, 0.18, count)).round(), 3, 100)
    return source.astype(int), target.astype(int)


def cost(batch, source, target, unit="tokens"):
    """What a batch costs with its padding."""
    longest = source[batch].max(), target[batch].max()
    return len(batch) * (sum(longest) if unit == "tokens" else math.prod(longest))


both_samplers = pytest.mark.parametrize("kind", [TokenBatchSampler, MixedBatchSampler])


@both_samplers
@given(
    pairs=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=60, max_size=160),
    replicas=st.integers(1, 5),
    max_sentences=st.none() | st.integers(9, 30),
    epoch=st.integers(0, 3),
    unit=st.sampled_from(["tokens", "cells"]),
)
@settings(max_examples=150)
def test_every_example_once_within_the_bound_and_equally_many_batches_for_every_process(
    kind, pairs, replicas, max_sentences, epoch, unit
):
    source, target = np.array(pairs).T
    bound = {"tokens": 300, "cells": 2_000}[unit]
    limits = {"num_replicas": replicas, "max_sentences": max_sentences, "cost": unit}
    sampler = kind(source, target, bound, **limits)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    assert sorted(chain.from_iterable(batches)) == list(range(len(pairs)))
    assert len(batches) == len(sampler)
    assert len(batches) % replicas == 0
    assert all(batches)
    assert max(map(len, batches)) <= (max_sentences or len(pairs))
    if kind is TokenBatchSampler:
        costs = [cost(batch, source, target, unit) for batch in batches]
    else:
        single = source + target if unit == "tokens" else source * target
        costs = [single[batch].sum() for batch in batches]
    assert max(costs) <= bound


@pytest.mark.parametrize("replicas", [1, 8])
def test_mixed_batches_are_alike(replicas):
    source, target = caption_lengths(6_007)
    sampler = MixedBatchSampler(source, target, 8_000, cost="cells", num_replicas=replicas)
    batches = list(sampler)
    cells = np.array([(source * target)[batch].sum() for batch in batches])
    assert cells.min() > 0.9 * cells.max()
    assert len(batches) < 1.03 * (source * target).sum() / 8_000 + replicas
    # Batches that are drawn at random differ by std / sqrt(n) in their mean length; these differ
    # less
    means = np.array([target[batch].mean() for batch in batches])
    assert means.std() < 0.5 * target.std() / np.sqrt(np.mean([len(batch) for batch in batches]))


@both_samplers
@pytest.mark.parametrize("replicas", [1, 4])
def test_the_order_is_a_function_of_seed_and_epoch(kind, replicas):
    def order(seed, epoch):
        sampler = kind(*caption_lengths(600), 1_000, seed=seed, num_replicas=replicas)
        sampler.set_epoch(epoch)
        return list(sampler)

    first = order(1, 0)
    assert first == order(1, 0)
    assert first != order(2, 0)
    # not only the order of the batches changes, but also which examples meet
    assert {*map(frozenset, first)} != {*map(frozenset, order(1, 1))}


@pytest.mark.parametrize("replicas", [1, 2, 8])
@pytest.mark.parametrize(("count", "max_tokens"), [(6_007, 400), (6_007, 2_000), (29_000, 4_096)])
def test_little_is_padded_and_processes_work_on_equally_large_batches(count, max_tokens, replicas):
    source, target = caption_lengths(count)
    batches = TokenBatchSampler(source, target, max_tokens, num_replicas=replicas)
    costs = np.array([cost(batch, source, target) for batch in batches])
    assert (source.sum() + target.sum()) / costs.sum() > 0.88
    assert len(costs) < 1.05 * costs.sum() / max_tokens + replicas  # the batches are full
    groups = costs.reshape(-1, replicas)
    balances = groups.min(axis=1) / groups.max(axis=1)
    assert balances.min() > 0.8
    assert np.mean(balances >= 0.9) > 0.95
    assert balances.mean() > 0.985


@pytest.mark.parametrize(("replicas", "worst"), [(2, 0.02), (8, 0.05), (64, 0.1)])
def test_the_processes_see_about_as_many_tokens_in_an_epoch(replicas, worst):
    """Real tokens without padding, of both sides and of the targets alone."""
    source, target = caption_lengths(100_000, mean=23, deviation=0.62)  # as of news
    sampler = TokenBatchSampler(source, target, 8_192, num_replicas=replicas)
    batches = list(sampler)
    for tokens in (source + target, target):
        sizes = np.array([tokens[batch].sum() for batch in batches])
        shares = sizes.reshape(-1, replicas).sum(axis=0)
        assert np.abs(shares / shares.mean() - 1).max() < worst


@both_samplers
def test_what_cannot_be_batched_is_refused(kind):
    for lengths, bound, replicas, message in (
        (([5, 90], [5, 20]), 100, 1, "example 1 has 90 source and 20 .*: alone it costs 110 tok"),
        (([5] * 3, [5] * 3), 100, 4, "3 examples in 1 batches cannot be shared equally"),
        (([5] * 5, [5] * 5), 10, 2, "5 examples in 5 batches .* by num_replicas=2"),
    ):
        with pytest.raises(ValueError, match=message):
            kind(*lengths, bound, num_replicas=replicas)


@both_samplers
@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("even_batches", [True, False])
def test_accelerate_gives_every_process_its_share(kind, processes, even_batches):
    def sampler():
        return kind(*caption_lengths(200), 300, seed=1, num_replicas=processes)

    expected = sampler()
    for rank in range(processes):
        loader = prepare_data_loader(
            DataLoader(range(200), batch_sampler=sampler(), collate_fn=list),
            num_processes=processes,
            process_index=rank,
            even_batches=even_batches,
            put_on_device=False,
        )
        loader = forward_set_epoch(loader)
        for epoch in (0, 1):
            expected.set_epoch(epoch)
            share = list(expected)[rank::processes]
            loader.set_epoch(epoch)
            assert list(loader) == share
            assert len(loader) == len(share)
            # as a run that is resumed within the epoch sees them
            loader.set_epoch(7)
            resumed = skip_first_batches(loader, 4)
            resumed.set_epoch(epoch)
            assert list(resumed) == share[4:]


def test_lengths_of_a_dataset_follow_a_selection():
    columns = {"input_ids": [[1], [1, 2], [1, 2, 3]], "labels": [[1, 2], [1], []]}
    source, target = example_lengths(Dataset.from_dict(columns).select([2, 0]))
    assert (source.tolist(), target.tolist()) == ([3, 1], [0, 2])
