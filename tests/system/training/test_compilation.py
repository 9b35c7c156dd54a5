# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Compiled training goes on where compiling fails."""

import copy
import logging

import pytest
import torch
from functorch.compile import nop
from system.training.tiny_runs import assert_weights
from torch._dynamo.backends.common import aot_autograd
from torch._inductor import compile_fx


@pytest.fixture
def settings_of_torch_return():
    """Afterwards torch compiles as before."""
    log = logging.getLogger("torch._dynamo.convert_frame")
    filters = list(log.filters)
    with (
        torch._dynamo.config.patch(suppress_errors=False),
        torch._functorch.config.patch(force_non_lazy_backward_lowering=False),
    ):
        yield
    log.filters = filters
    torch._dynamo.reset()


@pytest.mark.usefixtures("settings_of_torch_return")
def test_what_cannot_be_compiled_is_trained_as_it_is(make_trainer, monkeypatch, capfd):
    def fail(graph, inputs):
        raise RuntimeError("no compiler here\nand a second line")

    monkeypatch.setattr(compile_fx, "compile_fx", aot_autograd(fw_compiler=nop, bw_compiler=fail))
    short = {"max_steps": 2, "eval_strategy": "no"}
    plain = make_trainer("plain", **short)
    model = copy.deepcopy(plain.model)
    plain.train()
    trainer = make_trainer("compiled", model=model, torch_compile=True, **short)
    trainer.train()
    assert_weights(trainer.model, plain.model.state_dict())
    messages = capfd.readouterr().err
    assert messages.count("torch.compile failed: RuntimeError: no compiler here. That part") == 1
    assert "Traceback" not in messages
