# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
import math

import numpy as np
import pytest
from accelerate import skip_first_batches
from accelerate.data_loader import prepare_data_loader
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from csan_hf.data import MixedBatchSampler, TokenBatchSampler, example_lengths, forward_set_epoch


def caption_lengths(count, seed=0):
    """Lengths distributed like those of image captions: right-skewed, the two sides correlated."""
    rng = np.random.RandomState(seed)
    source = np.clip(np.exp(rng.normal(math.log(14), 0.35, count)).round(), 3, 60).astype(int)
    target = np.clip((source * rng.normal(1.1, 0.18, count)).round(), 3, 70).astype(int)
    return source, target


def padded(batch, source, target):
    return len(batch) * (source[batch].max() + target[batch].max())


def check_every_example_once(sampler, examples, replicas, max_sentences):
    batches = list(sampler)
    assert sorted(index for batch in batches for index in batch) == list(range(examples))
    assert len(batches) == len(sampler)
    assert len(batches) % replicas == 0
    assert all(batches)
    assert max_sentences is None or max(map(len, batches)) <= max_sentences
    return batches


@given(
    pairs=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=8, max_size=120),
    max_tokens=st.integers(120, 400),
    replicas=st.integers(1, 8),
    max_sentences=st.none() | st.integers(2, 9),
    epoch=st.integers(0, 3),
)
@settings(max_examples=150)
def test_every_example_once_within_the_bound_and_equally_many_batches_for_every_process(
    pairs, max_tokens, replicas, max_sentences, epoch
):
    source, target = np.array(pairs).T
    sampler = TokenBatchSampler(
        source, target, max_tokens, seed=3, num_replicas=replicas, max_sentences=max_sentences
    )
    sampler.set_epoch(epoch)
    batches = check_every_example_once(sampler, len(pairs), replicas, max_sentences)
    assert all(padded(batch, source, target) <= max_tokens for batch in batches)


@given(
    pairs=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=60, max_size=200),
    max_cells=st.integers(1_000, 4_000),
    replicas=st.integers(1, 3),
    max_sentences=st.none() | st.integers(9, 30),
    epoch=st.integers(0, 3),
)
@settings(max_examples=150)
def test_mixed_batches_hold_every_example_once_within_the_bound(
    pairs, max_cells, replicas, max_sentences, epoch
):
    source, target = np.array(pairs).T
    sampler = MixedBatchSampler(
        source,
        target,
        max_cells,
        cost="cells",
        num_replicas=replicas,
        max_sentences=max_sentences,
    )
    sampler.set_epoch(epoch)
    batches = check_every_example_once(sampler, len(pairs), replicas, max_sentences)
    assert max((source * target)[batch].sum() for batch in batches) <= max_cells


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


def test_the_bound_is_exact_in_padded_tokens_and_in_cells():
    # sorted as 2, 2, 3: the third target makes all three one longer, 3 * (4 + 3) = 21
    assert sorted(map(len, TokenBatchSampler([4] * 3, [2, 2, 3], 20))) == [1, 2]
    assert sorted(map(len, TokenBatchSampler([4] * 3, [2, 2, 3], 21))) == [3]
    assert {len(batch) for batch in TokenBatchSampler([9] * 100, [7] * 100, 240)} == {15, 10}
    source, target = caption_lengths(500)
    sampler = TokenBatchSampler(source, target, 9_000, cost="cells", num_replicas=3)
    assert max(len(batch) * source[batch].max() * target[batch].max() for batch in sampler) <= 9_000


both_samplers = pytest.mark.parametrize("kind", [TokenBatchSampler, MixedBatchSampler])


@both_samplers
@pytest.mark.parametrize("replicas", [1, 4])
def test_the_order_is_a_function_of_seed_and_epoch(kind, replicas):
    source, target = caption_lengths(600)

    def order(seed, epoch):
        sampler = kind(source, target, 1_000, seed=seed, num_replicas=replicas)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)
    # not only the order of the batches changes, but also which examples meet
    assert {frozenset(batch) for batch in order(1, 0)} != {
        frozenset(batch) for batch in order(1, 1)
    }


@pytest.mark.parametrize("replicas", [2, 3, 8])
@pytest.mark.parametrize(("count", "max_tokens"), [(6_007, 400), (6_007, 2_000), (29_000, 4_096)])
def test_the_processes_work_on_equally_large_batches(count, max_tokens, replicas):
    source, target = caption_lengths(count)
    batches = TokenBatchSampler(source, target, max_tokens, num_replicas=replicas)
    costs = np.array([padded(batch, source, target) for batch in batches]).reshape(-1, replicas)
    balances = costs.min(axis=1) / costs.max(axis=1)
    assert balances.min() > 0.8
    assert np.mean(balances >= 0.9) > 0.95
    assert balances.mean() > 0.985


@pytest.mark.parametrize(
    ("count", "max_tokens", "replicas"),
    [(29_000, 4_096, 1), (29_000, 4_096, 8), (29_000, 25_000, 4), (2_000, 1_000, 2)],
)
def test_little_is_padded(count, max_tokens, replicas):
    source, target = caption_lengths(count)
    batches = list(TokenBatchSampler(source, target, max_tokens, num_replicas=replicas))
    spent = sum(padded(batch, source, target) for batch in batches)
    assert (source.sum() + target.sum()) / spent > 0.88
    assert len(batches) < 1.05 * spent / max_tokens + replicas  # the batches are full


@both_samplers
@pytest.mark.parametrize(
    ("lengths", "bound", "replicas", "message"),
    [
        (
            ([5, 90], [5, 20]),
            100,
            1,
            "example 1 has 90 source and 20 target tokens: alone it costs 110 tokens",
        ),
        (([5] * 3, [5] * 3), 100, 4, "3 examples in 1 batches cannot be shared equally"),
        (([5] * 5, [5] * 5), 10, 2, "5 examples in 5 batches .* by num_replicas=2"),
    ],
)
def test_what_cannot_be_batched_is_refused(kind, lengths, bound, replicas, message):
    with pytest.raises(ValueError, match=message):
        kind(*lengths, bound, num_replicas=replicas)


@both_samplers
@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("even_batches", [True, False])
def test_accelerate_gives_every_process_its_share(kind, processes, even_batches):
    source, target = caption_lengths(200)
    expected = kind(source, target, 300, seed=1, num_replicas=processes)
    for rank in range(processes):
        sampler = kind(source, target, 300, seed=1, num_replicas=processes)
        loader = prepare_data_loader(
            DataLoader(list(range(len(source))), batch_sampler=sampler, collate_fn=list),
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
    dataset = Dataset.from_dict(
        {"input_ids": [[1], [1, 2], [1, 2, 3]], "labels": [[1, 2], [1], []], "text": list("abc")}
    )
    source, target = example_lengths(dataset.select([2, 0]))
    assert (source.tolist(), target.tolist()) == ([3, 1], [0, 2])


def news_lengths(count, seed=0):
    """Subword lengths like those of WMT news: mean about 28, a long tail, cut at 100, the two sides
    correlated.
    """
    rng = np.random.RandomState(seed)
    source = np.clip(np.exp(rng.normal(3.15, 0.62, count)).round(), 2, 100).astype(int)
    target = np.clip((source * np.exp(rng.normal(0.05, 0.2, count))).round(), 2, 100).astype(int)
    return source, target


@pytest.mark.parametrize(("replicas", "worst"), [(2, 0.02), (8, 0.05), (64, 0.1)])
def test_the_processes_see_about_as_many_tokens_in_an_epoch(replicas, worst):
    """Real tokens without padding, of both sides and of the targets alone: each process within 10 %
    of the mean.
    """
    source, target = news_lengths(100_000)
    sampler = TokenBatchSampler(source, target, 8_192, num_replicas=replicas)
    for epoch in (0, 1):
        sampler.set_epoch(epoch)
        batches = list(sampler)
        for tokens in (source + target, target):
            sizes = np.array([tokens[batch].sum() for batch in batches])
            shares = sizes.reshape(-1, replicas).sum(axis=0)
            assert np.abs(shares / shares.mean() - 1).max() < worst
