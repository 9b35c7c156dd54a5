# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Training on a GPU: where it is compiled, what happens where compiling fails, copies of batches."""

import copy
import importlib.util

import pytest
import torch
from functorch.compile import nop
from system.training.tiny_runs import assert_weights
from torch._dynamo.backends.common import aot_autograd
from torch._inductor import compile_fx

from csan_hf.training import arguments


@pytest.mark.parametrize(
    ("cards", "launched", "triton", "compiled"),
    [
        (1, False, True, True),
        (1, False, False, False),
        (2, False, True, False),
        (1, True, True, False),
    ],
)
def test_a_single_gpu_trains_compiled(cards, launched, triton, compiled, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    monkeypatch.setattr(arguments, "is_launched", lambda: launched)
    find = importlib.util.find_spec
    package = "csan_hf" if triton else "nothing_of_this_name"
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: find(package if name == "triton" else name)
    )
    made = arguments.TranslationTrainingArguments(output_dir=str(tmp_path))
    assert made.torch_compile == compiled


def test_a_cpu_trains_uncompiled_unless_told(make_trainer):
    assert make_trainer().args.torch_compile is False


def test_no_batch_waits_for_its_copy_to_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    made = arguments.TranslationTrainingArguments(output_dir=str(tmp_path), bf16=False)
    assert made.accelerator_config.non_blocking


def test_what_cannot_be_compiled_is_trained_as_it_is(make_trainer, monkeypatch, capfd):
    def fail(graph, inputs):
        raise RuntimeError("no compiler here\nand a second line")

    monkeypatch.setattr(compile_fx, "compile_fx", aot_autograd(fw_compiler=nop, bw_compiler=fail))
    torch._dynamo.reset()
    short = {"max_steps": 2, "eval_strategy": "no"}
    plain = make_trainer("plain", **short)
    model = copy.deepcopy(plain.model)
    plain.train()
    with torch._dynamo.config.patch(suppress_errors=False):
        trainer = make_trainer("compiled", model=model, torch_compile=True, **short)
        trainer.train()
    assert_weights(trainer.model, plain.model.state_dict())
    messages = capfd.readouterr().err
    assert messages.count("RuntimeError: no compiler here (--torch_compile false") == 1
    assert "Traceback" not in messages
