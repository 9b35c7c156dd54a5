# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""torch.compile of forward and of a training step: the same numbers, and one program for all
lengths.

`aot_eager` traces forward and backward as the real compilers do, and leaves out the slow code
generation. Pervasive Attention without hints: tests/models/test_pervasive_precision_and_compile.py.
"""

import copy

import pytest
import tiny
import torch
from families import ONE_LAYER, PLAIN_LAYER, sources, targets, training_batch
from tiny import gradients
from torch._dynamo.testing import CompileCounterWithBackend

AREA = {**PLAIN_LAYER, "localness_layers": [0], "local_window": 5, "head_area": 3}
MODELS = {
    "csan, area": lambda **options: tiny.csan(**{**AREA, **options}),
    "csan, everything": lambda **options: tiny.csan(**{**ONE_LAYER, **options}),
    "conv_s2s": lambda **options: tiny.convolutional(encoder_layers=1, decoder_layers=1, **options),
}
# Neither batch size nor any length twice, and no two lengths of one batch equal: equal sizes would
# be one symbol
SHAPES = (
    ((7, 4, 6), (5, 6, 3)),
    ((9, 3), (4, 8)),
    ((5, 11, 2, 10), (3, 12, 9, 13)),
    ((8, 6, 5, 4, 3), (2, 5, 7, 4, 1)),
)


def same(found: dict, expected: dict) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.fixture
def constant_numbers():
    """The numbers that modules hold (scales, dropout rates) are no symbols, as they are where all
    is dynamic.

    With symbols every backward is traced twice. Tests without this fixture have them.
    """
    with torch._dynamo.config.patch(specialize_float=True):
        yield


@pytest.mark.parametrize("name", ["csan, everything", "conv_s2s"])
@pytest.mark.usefixtures("constant_numbers")
def test_training_step_is_compiled_once_for_all_lengths(name):
    model = MODELS[name](seed=1).train()
    twin = copy.deepcopy(model)
    counter = CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    compiled = torch.compile(twin, backend=counter, dynamic=True, fullgraph=True)
    frames = []
    for shapes in SHAPES:
        batch = training_batch(*shapes)
        for each in (model, twin):
            each.zero_grad()
        expected, found = model(**batch), compiled(**batch)
        torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found.loss, expected.loss)
        expected.loss.backward()
        found.loss.backward()
        same(gradients(twin), gradients(model))
        frames.append(counter.frame_count)
    assert frames == [frames[0]] * len(SHAPES), f"compiled anew for new lengths: {frames}"


@pytest.mark.usefixtures("constant_numbers")
@torch.no_grad()
def test_lstms_stay_between_graphs():
    """The compiler leaves them to torch's kernels; what surrounds them is compiled once for all
    lengths.
    """
    model = tiny.recurrent(seed=1, input_feeding=True)
    counter = CompileCounterWithBackend("eager")
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=counter, dynamic=True)
    frames = []
    for shapes in SHAPES:
        batch = training_batch(*shapes)
        torch.testing.assert_close(
            compiled(**batch).logits, model(**batch).logits, rtol=1e-4, atol=1e-5
        )
        frames.append(counter.frame_count)
    assert frames == [frames[0]] * len(SHAPES), f"compiled anew for new lengths: {frames}"


@torch.no_grad()
def test_forward_without_hints():
    """The first new length makes the program a general one; no later one compiles again."""
    model = MODELS["csan, area"](seed=1)
    counter = CompileCounterWithBackend("eager")
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=counter)
    frames = []
    for source, target in SHAPES:
        batch = {
            **sources(source),
            "decoder_input_ids": targets(len(target), max(target)),
            "use_cache": False,
        }
        torch.testing.assert_close(
            compiled(**batch).logits, model(**batch).logits, rtol=1e-4, atol=1e-5
        )
        frames.append(counter.frame_count)
    assert frames[1:] == [frames[1]] * (len(SHAPES) - 1), f"compiled anew for new lengths: {frames}"


@pytest.mark.parametrize("implementation", ["eager", "blocked"])
def test_other_implementations_are_compiled_once_for_all_lengths(implementation, request):
    if implementation == "blocked":
        request.getfixturevalue("constant_numbers")
    model = MODELS["csan, area"](attn_implementation=implementation)
    counter = CompileCounterWithBackend("eager")
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=counter, dynamic=True)
    for shapes in SHAPES:
        batch = training_batch(*shapes)
        torch.testing.assert_close(
            compiled(**batch).logits, model(**batch).logits, rtol=1e-4, atol=1e-5
        )
    assert counter.frame_count == 1


@pytest.mark.usefixtures("constant_numbers")
def test_long_sentences_cost_two_programs():
    """From 128 tokens on, sentences are computed in blocks: one more program, whatever the length."""
    model = MODELS["csan, area"](max_position_embeddings=512).get_encoder()
    counter = CompileCounterWithBackend("eager")
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=counter, dynamic=True)
    with torch.no_grad():
        for length in (20, 50, 100, 140, 200, 333):
            batch = sources((length, 9))
            found, expected = (each(**batch).last_hidden_state for each in (compiled, model))
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert counter.frame_count == 2
