# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""torch.compile of forward and of a training step: the same numbers, and one program for all
lengths.

`aot_eager` traces forward and backward as the real compilers do, and leaves out the slow code
generation.
"""

import copy
from collections.abc import Callable

import pytest
import tiny
import torch
from families import sources, targets, training_batch
from tiny import ONE_LAYER, PLAIN_LAYER, decode_in_steps, every_mode, gradients
from torch._dynamo.testing import CompileCounterWithBackend
from torch.testing import assert_close

from csan_hf.models.depthwise_operator import depthwise_convolution

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


SINGLE = {"rtol": 1e-4, "atol": 1e-5}
DOUBLE = {"rtol": 1e-9, "atol": 1e-9}


def programs_after(
    model, batches: list[dict], backend: str = "eager", tolerance: dict = SINGLE, **options
) -> list[int]:
    """How many programs there are after each batch; each computes what the model does.

    With a backend that differentiates, its gradients and statistics, too."""
    twin = copy.deepcopy(model)
    counter = CompileCounterWithBackend(backend)
    torch._dynamo.reset()
    compiled = torch.compile(twin, backend=counter, **options)
    counts = []
    for batch in batches:
        expected = model(**batch)
        compiled_outputs = compiled(**batch)
        for name in {"logits", "last_hidden_state"} & expected.keys():
            assert_close(compiled_outputs[name], expected[name], **tolerance)
        if backend == "aot_eager":
            for outputs, module in ((expected, model), (compiled_outputs, twin)):
                module.zero_grad()
                outputs.loss.backward()
            assert_close(compiled_outputs.loss, expected.loss)
            assert_close(gradients(twin), gradients(model), **tolerance)
            assert_close(dict(twin.named_buffers()), dict(model.named_buffers()), **tolerance)
        counts.append(counter.frame_count)
    return counts


@pytest.fixture
def constant_numbers():
    """The numbers that modules hold (scales, dropout rates) are no symbols, as they are where all
    is dynamic.

    With symbols every backward is traced twice. Tests without this fixture have them.
    """
    with torch._dynamo.config.patch(specialize_float=True):
        yield


TRAINING = [training_batch(*shapes) for shapes in SHAPES]


@pytest.mark.parametrize("name", ["csan, everything", "conv_s2s"])
@pytest.mark.usefixtures("constant_numbers")
def test_training_step_is_compiled_once_for_all_lengths(name):
    options = {"backend": "aot_eager", "dynamic": True, "fullgraph": True}
    counts = programs_after(MODELS[name](seed=1).train(), TRAINING, **options)
    assert len(set(counts)) == 1, f"compiled anew for new lengths: {counts}"


@every_mode
def test_training_step_of_a_grid_without_hints(training):
    model = tiny.grid(num_layers=1).double().train(training)
    options = {"backend": "aot_eager", "fullgraph": True, "tolerance": DOUBLE}
    _, *counts = programs_after(model, TRAINING[:3], **options)
    assert len(set(counts)) == 1, f"compiled anew for new lengths: {counts}"


def test_training_step_of_a_residual_grid_is_compiled_once_for_all_lengths():
    model = tiny.grid(**tiny.RESIDUAL, num_layers=1).double().train()
    options = {"backend": "aot_eager", "fullgraph": True, "dynamic": True, "tolerance": DOUBLE}
    counts = programs_after(model, TRAINING, **options)
    assert len(set(counts)) == 1, f"compiled anew for new lengths: {counts}"


def test_inductor_is_given_no_depthwise_convolution_of_torch():
    """It makes a program for each length of one, and none in bf16 where a gate follows."""
    counter = CompileCounterWithBackend("eager")
    torch._dynamo.reset()
    torch.compile(tiny.grid(**tiny.RESIDUAL).train(), backend=counter)(**TRAINING[0])
    (graph,) = counter.graphs
    functions = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert "csan_hf.convolve_channels.default" in functions
    assert not any("conv2d" in function for function in functions)


def test_the_operator_is_what_torch_is_told():
    """Shapes, strides and gradients under the compiler's fake tensors."""
    image = torch.randn(2, 3, 7, 9, dtype=torch.float64, requires_grad=True)
    for outputs in (3, 6):
        kernel = torch.randn(outputs, 1, 3, 5, dtype=torch.float64, requires_grad=True)
        torch.library.opcheck(depthwise_convolution, (image, kernel))
        assert torch.autograd.gradcheck(depthwise_convolution, (image, kernel))


@pytest.mark.parametrize(
    "make",
    [
        lambda: tiny.convolutional(encoder_layers=1, decoder_layers=1),
        lambda: tiny.grid(num_layers=1),
        lambda: tiny.grid(num_layers=1, **tiny.RESIDUAL),
    ],
)
@torch.no_grad()
def test_steps_of_decoding_are_compiled_once_for_all_positions(make):
    """Of CSAN in tests/oracles/test_generation_cache.py."""
    model = make()
    batch = sources((6, 3))
    prefixes = {"decoder_input_ids": targets(2, 9)}
    expected = model(**batch, **prefixes, use_cache=False).logits
    counter = CompileCounterWithBackend("eager")
    torch._dynamo.reset()
    model.forward = torch.compile(model.forward, backend=counter, fullgraph=True)
    logits, _ = decode_in_steps(model, batch, prefixes, [1] * 9)
    assert_close(logits, expected, **SINGLE)
    assert counter.frame_count <= 4, "the first step, and lengths that were not general yet"


def test_a_compiled_search_does_not_notice_that_an_earlier_one_is_forgotten():
    """What is kept for a search goes with its cache, perhaps while another is compiled."""
    model = tiny.grid(seed=1)
    kept = model.make_cache(num_beams=1)
    batch = sources((6, 3))
    expected = model.generate(**batch, cache=kept, max_new_tokens=8)

    def forgetting(graph: torch.fx.GraphModule, inputs: object) -> Callable:
        kept.self_attention_cache.reset()
        return graph.forward

    torch._dynamo.reset()
    model.forward = torch.compile(model.forward, backend=forgetting)
    assert torch.equal(model.generate(**batch, max_new_tokens=8), expected)


@pytest.mark.usefixtures("constant_numbers")
@torch.no_grad()
def test_lstms_stay_between_graphs():
    """The compiler leaves them to torch's kernels; what surrounds them is compiled once for all
    lengths.
    """
    counts = programs_after(tiny.recurrent(seed=1, input_feeding=True), TRAINING, dynamic=True)
    assert len(set(counts)) == 1, f"compiled anew for new lengths: {counts}"


@torch.no_grad()
def test_forward_without_hints():
    """The first new length makes the program a general one; no later one compiles again."""
    batches = []
    for source, target in SHAPES:
        ids = targets(len(target), max(target))
        batches.append({**sources(source), "decoder_input_ids": ids, "use_cache": False})
    _, *counts = programs_after(MODELS["csan, area"](seed=1), batches)
    assert len(set(counts)) == 1, f"compiled anew for new lengths: {counts}"


@pytest.mark.parametrize("implementation", ["eager", "blocked"])
def test_other_implementations_are_compiled_once_for_all_lengths(implementation, request):
    if implementation == "blocked":
        request.getfixturevalue("constant_numbers")
    model = MODELS["csan, area"](attn_implementation=implementation)
    assert programs_after(model, TRAINING, dynamic=True) == [1] * len(SHAPES)


@pytest.mark.usefixtures("constant_numbers")
@torch.no_grad()
def test_long_sentences_cost_two_programs():
    """From 128 tokens on, sentences are computed in blocks: one more program, whatever the length."""
    model = MODELS["csan, area"](max_position_embeddings=512).get_encoder()
    batches = [sources((length, 9)) for length in (20, 50, 100, 140, 200, 333)]
    assert programs_after(model, batches, dynamic=True)[-1] == 2
