# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Data-loading workers: the signals that end a run are not for them."""

import multiprocessing
import os
import signal
from multiprocessing import forkserver
from pathlib import Path

import pytest
from training.tiny_runs import LOSS_ALONE
from transformers import TrainerCallback

from csan_hf.training.checkpoints import find_fault
from csan_hf.training.stopping import RunInterrupted, StopSignals


class SignalWholeGroup(TrainerCallback):
    """Sends a signal to the workers, and two updates later to this process."""

    def __init__(self, number):
        self.number = number

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 3:
            children = multiprocessing.active_children()
            assert len(children) == args.dataloader_num_workers
            for child in children:
                os.kill(child.pid, self.number)
        elif state.global_step == 5:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize(
    ("number", "method"),
    [("SIGTERM", None), ("SIGINT", None), ("SIGUSR1", None), ("SIGTERM", "forkserver")],
)
def test_a_signal_to_the_whole_group_saves_a_checkpoint(make_trainer, capfd, number, method):
    if method == "forkserver":
        multiprocessing.get_context(method).set_forkserver_preload(["csan_hf.training"])
        forkserver.ensure_running()  # as its children, those of other tests must not be born with signals blocked
    trainer = make_trainer(
        max_steps=12,
        eval_steps=12,
        max_tokens=700,
        **LOSS_ALONE,
        dataloader_num_workers=2,
        dataloader_prefetch_factor=1,
        dataloader_multiprocessing_context=method,
    )
    trainer.callback_handler.callbacks.insert(0, SignalWholeGroup(getattr(signal, number)))
    with StopSignals(trainer.args.output_dir) as signals:
        trainer.guard.signals = signals
        with pytest.raises(RunInterrupted, match=rf"Stopped by {number} at update 5 of 12: saved in"):
            trainer.train()
    assert find_fault(Path(trainer.args.output_dir) / "checkpoint-5") is None


def test_without_a_run_of_ours_workers_get_signals_as_ever(make_trainer):
    loader = make_trainer(dataloader_num_workers=1).get_train_dataloader()
    iterator = iter(loader)
    next(iterator)
    (worker,) = multiprocessing.active_children()
    worker.terminate()
    worker.join(timeout=10)
    assert worker.exitcode is not None
