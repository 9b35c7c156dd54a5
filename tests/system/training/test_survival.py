# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Runs that are killed, signalled, fed with damaged checkpoints, a full disk or losses that are not
finite.
"""

import contextlib
import itertools
import multiprocessing
import os
import pkgutil
import shutil
import signal
import sys
import time
from multiprocessing import forkserver
from pathlib import Path

import pytest
import torch
from datasets import load_from_disk
from system.training.tiny_runs import (
    LOSS_ALONE,
    TINY,
    assert_weights,
    leave_out_pictures,
    make_checkpoint,
    parse,
    tiny_grid,
)
from transformers import TrainerCallback

from csan_hf.data import TokenStream, describe_dataset
from csan_hf.hub.public_files import read_json
from csan_hf.training import RecipeError
from csan_hf.training.checkpoints import (
    FACTS,
    check_same_data,
    find_fault,
    list_checkpoints,
    scores_by_step,
)
from csan_hf.training.output_folder import MARK, check_output_folder, choose_checkpoint
from csan_hf.training.stopping import STOP_SIGNALS, RunError, RunInterrupted, StopSignals
from csan_hf_runtime.command_line import main
from csan_hf_runtime.text_files import write_json, write_lines


def truncate(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def of_update_4(path):
    write_json(path, {"global_step": 4})


def names(folder):
    return sorted(path.name for path in folder.glob("*checkpoint-*"))


# ---- damaged checkpoints


@pytest.fixture
def copy(tmp_path):
    """A folder of three checkpoints."""
    for step in (2, 4, 6):
        make_checkpoint(tmp_path / "run", step)
    (tmp_path / "run" / MARK).touch()
    shutil.copy(TINY, tmp_path / "run" / "recipe.yaml")
    return tmp_path / "run"


FAULTS = [
    ("model.safetensors", truncate, "its weights cannot be read"),
    ("model.safetensors", Path.unlink, "its weights cannot be read"),
    ("trainer_state.json", truncate, "trainer_state.json cannot be read"),
    ("trainer_state.json", of_update_4, "trainer_state.json is of update 4"),
    ("optimizer.pt", Path.unlink, "it was saved without the optimizer's state"),
    ("scheduler.pt", Path.unlink, "it was saved without scheduler.pt"),
    ("rng_state.pth", Path.unlink, "it was saved without rng_state.pth"),
    ("config.json", Path.unlink, "config.json cannot be read"),
    ("tokenizer_config.json", Path.unlink, "tokenizer_config.json cannot be read"),
    ("scheduler.pt", truncate, "scheduler.pt is cut off"),
    (FACTS, truncate, f"{FACTS} cannot be read"),
    ("tokenizer.json", truncate, "tokenizer.json cannot be read"),
]


@pytest.mark.parametrize(("name", "spoil", "message"), FAULTS)
def test_a_damaged_newest_checkpoint_is_skipped(copy, capsys, name, spoil, message):
    spoil(copy / "checkpoint-6" / name)
    assert choose_checkpoint(copy) == copy / "checkpoint-4"
    said = capsys.readouterr().err
    assert f"Resuming from {copy / 'checkpoint-4'} (skipped checkpoint-6 ({message}" in said
    assert said.count("\n") == 1


def test_each_process_needs_its_random_state(copy):
    newest = copy / "checkpoint-6"
    write_json(newest / FACTS, {"processes": 2})
    (newest / "rng_state.pth").rename(newest / "rng_state_0.pth")
    assert find_fault(newest) == "it was saved without rng_state_1.pth"
    shutil.copy(newest / "rng_state_0.pth", newest / "rng_state_1.pth")
    assert find_fault(newest) is None


def test_an_empty_newest_checkpoint_says_nothing_of_the_length(copy):
    (copy / "checkpoint-999").mkdir()
    check_output_folder(parse(f"{TINY} --output_dir {copy}"), copy)
    assert choose_checkpoint(copy) == copy / "checkpoint-6"


def test_what_a_killed_process_left_is_cleared_away(copy):
    for name in ("_unfinished/checkpoint-8", "mine"):
        (copy / name).mkdir(parents=True)
    choose_checkpoint(copy)
    assert names(copy) == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]
    assert {path.name for path in copy.iterdir()} == {*names(copy), MARK, "recipe.yaml", "mine"}


# ---- a changed recipe


CHANGES = {
    "--config.d_model 32": "config.d_model: 16 there, 32 here",
    "--model pervasive_attention": "(model: csan there, pervasive_attention here)",
    "--training.seed 4": "training.seed: 3 there, 4 here",
    "--learning_rate 1e-3": "training.learning_rate: 0.005 there, 0.001 here",
    "--tokenizer.vocab_size 400": "tokenizer.vocab_size: 300 there, 400 here",
    "--bleu_tokenize char": "bleu_tokenize: None there, char here",
    "--dataloader_drop_last": "training.dataloader_drop_last: False there, True here",
    "--lr_scheduler_type cosine --max_steps 9": "lr_scheduler_type: inverse_sqrt there, cosine here",
    # The rate depends on the length
    "--warmup_steps 0.1 --max_steps 20": "max_steps: 12 there, 20 here",
    # Fewer updates than were made
    "--max_steps 4": "max_steps: 12 there, 4 here",
}


@pytest.mark.parametrize(("words", "change"), CHANGES.items())
def test_a_recipe_that_changes_the_run_is_refused(copy, words, change):
    recipe = parse(f"{TINY} --output_dir {copy} {words}")
    with pytest.raises(RecipeError) as error:
        check_output_folder(recipe, copy)
    for told in (change, "another experiment", "--output_dir", "--overwrite"):
        assert told in str(error.value)


def test_harmless_changes_are_said(copy, capsys):
    # The defaults, written out
    same = f"{TINY} --output_dir {copy} --config.dropout 0.1 --adam_beta2 0.98"
    check_output_folder(parse(same), copy)
    assert capsys.readouterr().err == ""
    harmless = (
        f"{same} --max_steps 20 --logging_steps 1 --dataloader_num_workers 8 --keep_best 3 "
        "--data.data_dir moved --hub_dataset we/there --activation_checkpointing"
    )
    check_output_folder(parse(harmless), copy)
    said = capsys.readouterr().err
    for change in (
        "training.keep_best from 2 to 3;",
        "max_steps from 12 to 20",
        "data.data_dir from None to moved",
    ):
        assert change in said


def test_another_number_of_processes_is_said(copy, make_trainer):
    facts = make_trainer().describe_run()
    write_json(copy / "checkpoint-6" / FACTS, {**facts, "processes": 8})
    notice = check_same_data(copy / "checkpoint-6", facts)
    assert "was saved by 8 processes, now there are 1" in notice


def reversed_in_the_last_row(rows, column):
    values = [*rows[column]]
    values[-1] = values[-1][::-1]
    return rows.remove_columns(column).add_column(column, values)


@pytest.mark.parametrize(
    ("split", "change", "message"),
    [
        ("train", lambda rows: rows.select(range(100)), "training set .* 300 pairs then, 100 now"),
        ("train", lambda rows: reversed_in_the_last_row(rows, "input_ids"), "training set is not"),
        ("train", lambda rows: reversed_in_the_last_row(rows, "labels"), "training set is not"),
        ("validation", lambda rows: reversed_in_the_last_row(rows, "target"), "validation set is"),
    ],
    ids=["fewer", "sources", "targets", "references"],
)
def test_changed_data_is_refused(copy, make_trainer, tokenized, split, change, message):
    write_json(copy / "checkpoint-6" / FACTS, make_trainer().describe_run())
    changed = make_trainer(**{split: change(tokenized[split])})
    with pytest.raises(RecipeError, match=f"The {message}.* of other content"):
        check_same_data(copy / "checkpoint-6", changed.describe_run())


def test_fingerprints_do_not_depend_on_how_the_data_is_stored(tokenized, tmp_path):
    rows = tokenized["validation"]
    rows.select(range(5, 24)).save_to_disk(str(tmp_path / "rows"), num_shards=3)
    facts = describe_dataset(rows.select([*range(5, 24)]))
    assert describe_dataset(load_from_disk(str(tmp_path / "rows"))) == facts
    assert describe_dataset(rows.select([6, 5, *range(7, 24)]))["sha256"] != facts["sha256"]


def test_a_run_without_a_whole_checkpoint_is_not_trained_anew(copy, tmp_path):
    for path in copy.glob("checkpoint-*/optimizer.pt"):
        path.unlink()
    with pytest.raises(
        RecipeError, match=r"to resume from: checkpoint-6 .*optimizer.*checkpoint-2.*overwrite"
    ):
        choose_checkpoint(copy)
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(
        RecipeError, match=r"holds a run without a checkpoint to resume from\. .*--overwrite"
    ):
        choose_checkpoint(tmp_path)


# ---- losses that are not finite, a full disk, signals


class At(TrainerCallback):
    """Does something at an event of an update, before the trainer's own callbacks."""

    def __init__(self, step, action, event="on_step_end"):
        def act(args, state, control, **kwargs):
            if state.global_step == step:
                action()

        setattr(self, event, act)


@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_loss_that_is_nan_ends_the_run(make_trainer, accumulated):
    trainer = make_trainer(gradient_accumulation_steps=accumulated, **LOSS_ALONE)
    batches = itertools.count(1)
    compute = trainer.compute_loss

    def compute_loss(model, *arguments, **options):
        loss = compute(model, *arguments, **options)
        return loss * float("nan") if model.training and next(batches) == 4 * accumulated else loss

    trainer.compute_loss = compute_loss
    with pytest.raises(
        RunError, match=r"not finite .* at update 4 of 6.*since \S+checkpoint-3\. .*learning_rate"
    ):
        trainer.train()
    assert find_fault(Path(trainer.args.output_dir) / "checkpoint-3") is None


def test_weights_that_are_not_finite_are_not_saved(make_trainer):
    trainer = make_trainer(**LOSS_ALONE)
    weight = next(trainer.model.parameters())
    trainer.add_callback(At(6, lambda: weight.data.fill_(float("inf"))))
    with pytest.raises(
        RunError, match=r"a weight is not finite .* at update 6 .*since \S+checkpoint-3\. "
    ):
        trainer.train()
    assert names(Path(trainer.args.output_dir)) == ["checkpoint-3"]


@pytest.mark.skipif(
    not os.path.exists("/dev/full"), reason="a device that is always full is Linux's"
)
@pytest.mark.parametrize("name", ["optimizer.pt", "trainer_state.json"])
def test_a_full_disk_costs_no_good_checkpoint(make_trainer, name):
    trainer = make_trainer(**LOSS_ALONE)
    save = trainer._save_optimizer_and_scheduler

    def fill_the_disk(folder):
        if folder.endswith("-6"):
            os.symlink("/dev/full", os.path.join(folder, name))
        save(folder)

    trainer._save_optimizer_and_scheduler = fill_the_disk
    message = (
        r"checkpoint-6 could not be saved: .*nothing was saved since \S+checkpoint-3\. Make room"
    )
    with pytest.raises(RunError, match=message):
        trainer.train()
    assert names(Path(trainer.args.output_dir)) == ["checkpoint-3"]


def stop_by_signal(trainer, *callbacks):
    """Trains until one of the callbacks, which come before the trainer's own, sends a signal."""
    trainer.callback_handler.callbacks[:0] = callbacks
    with StopSignals(trainer.args.output_dir) as signals:
        trainer.guard.signals = signals
        try:
            trainer.train()
        except RunInterrupted as stop:
            # Its frames hold the workers that load data, which garbage collection ends after 5 s
            return stop.with_traceback(None)
    pytest.fail("the signal did not end the training")


MOMENTS = {  # after an update, where an evaluation is due, and during one
    "csan": [(4, "on_step_end"), (5, "on_step_end"), (5, "on_prediction_step")],
    "pervasive_attention": [(7, "on_step_end")],
}


@pytest.mark.parametrize(("family", "moments"), MOMENTS.items())
def test_a_signal_saves_and_the_resumed_run_ends_alike(
    make_trainer, tokenizers, capfd, family, moments
):
    def build(folder):
        return make_trainer(
            folder,
            model=tiny_grid(len(tokenizers.source)) if family == "pervasive_attention" else None,
            max_steps=12,
            eval_steps=5,
            keep_best=2,
            max_tokens=700,
            max_cells=7000,
            **LOSS_ALONE,
        )

    whole = build("whole")
    whole.train()
    for step, event in moments:
        cut = build(f"cut {step} {event}")
        stop = stop_by_signal(cut, At(step, lambda: signal.raise_signal(signal.SIGTERM), event))
        folder = Path(cut.args.output_dir) / f"checkpoint-{step}"
        message = f"Stopped by SIGTERM at update {step} of 12: saved in {folder}. Start the same"
        assert message in str(stop)
        assert stop.exit_code == 143
        assert "SIGTERM: saving a checkpoint at the end of this update" in capfd.readouterr().err
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        assert choose_checkpoint(folder.parent) == folder
        resumed = build(f"cut {step} {event}")
        resumed.train(resume_from_checkpoint=str(folder))
        assert_weights(resumed.model, whole.model.state_dict())
        assert resumed.state.best_global_step == whole.state.best_global_step
        logs = [trainer.state.log_history for trainer in (whole, resumed)]
        assert scores_by_step(logs[0], "loss") == scores_by_step(logs[1], "loss")


def test_a_resumed_stream_ends_alike(make_trainer, tokenizers, tokenized, tmp_path):
    """Random numbers included: the model has dropout."""
    for name, language in (("source", "en"), ("target", "de")):
        write_lines(tmp_path / f"train.{language}", tokenized["train"][name])
    options = "--data.train train.{lang} --streaming --buffer_size 40"
    args = parse(f"--data_dir {tmp_path} {options}").data_arguments()
    stream = TokenStream(args, tokenizers, sample=tokenized["train"])
    whole = make_trainer("whole", train=stream, **LOSS_ALONE)
    whole.train()
    resumed = make_trainer("resumed", train=stream, **LOSS_ALONE)
    resumed.resume(tmp_path / "whole" / "checkpoint-3")
    assert_weights(resumed.model, whole.model.state_dict())


def test_a_second_signal_ends_at_once_and_so_does_one_outside_training(
    tmp_path, capfd, monkeypatch
):
    # within training the second and third come of torchrun, which passes one on, and of a key that
    # is held down
    clock = iter([5, 10.0, 10.02, 10.9, 12.5, 20])
    monkeypatch.setattr(time, "monotonic", clock.__next__)
    with StopSignals(tmp_path) as signals:
        with pytest.raises(RunInterrupted, match="Stopped by SIGINT before training began") as stop:
            os.kill(os.getpid(), signal.SIGINT)
        assert stop.value.exit_code == 130
        # Were it swallowed, the first update would end the run
        assert signals.received == signal.SIGINT
    with StopSignals(tmp_path) as signals:
        signals.phase = "training"
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGUSR1)
        assert signals.received == signal.SIGUSR1
        assert capfd.readouterr().err.count("saving a checkpoint") == 1
        with pytest.raises(
            RunInterrupted, match=r"Stopped by SIGTERM without saving since the last checkpoint"
        ):
            os.kill(os.getpid(), signal.SIGTERM)
        signals.phase = "after"
        with pytest.raises(RunInterrupted, match="Stopped by SIGTERM after training"):
            os.kill(os.getpid(), signal.SIGTERM)


def test_intervals_of_a_resumed_run_may_change(make_trainer):
    first = make_trainer("run", max_steps=4, eval_steps=4, **LOSS_ALONE)
    first.train()
    second = make_trainer("run", max_steps=8, eval_steps=2, **LOSS_ALONE)
    second.train(resume_from_checkpoint=str(list_checkpoints(first.args.output_dir)[-1]))
    assert list(scores_by_step(second.state.log_history, "loss")) == [4, 6, 8]


# ---- kill -9 at chosen places, each in a process of its own


def _signal_after(function, calls, number):
    """Has the process signal itself when a function returns for the given time; what the handler
    raises is lost.
    """
    original = pkgutil.resolve_name(function)
    count = itertools.count(1)

    def call(*arguments, **options):
        result = original(*arguments, **options)
        if next(count) == calls:
            with contextlib.suppress(RunInterrupted):
                os.kill(os.getpid(), number)
        return result

    pytest.MonkeyPatch().setattr(function, call)


def _train(arguments, log, *place):
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    torch.set_num_threads(1)
    leave_out_pictures(pytest.MonkeyPatch())
    if place:
        _signal_after(*place)
    sys.exit(main(["train", *arguments]))


@pytest.fixture(scope="module")
def forks():
    """Starts processes as forks of one that has imported everything and computed nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["csan_hf.commands.train", "csan_hf.hub", "torch.utils.tensorboard", "pytest"]
    )
    return context


@pytest.fixture(scope="module")
def train(forks, tmp_path_factory):
    """Starts the training script."""
    log = tmp_path_factory.mktemp("logs") / "log.txt"

    def start(output, *place):
        words = f"{TINY} --metric_for_best_model loss --output_dir {output}"
        process = forks.Process(target=_train, args=(words.split(), str(log), *place))
        process.start()
        process.join(timeout=300)
        return process.exitcode, log.read_text()

    return start


@pytest.fixture(scope="module")
def whole(train, tmp_path_factory):
    output = tmp_path_factory.mktemp("whole") / "out"
    code, said = train(output)
    assert code == 0, said
    return output


NEW, END = "Starting a new run in", "only the end of the run is repeated"
PLACES = {  # what has returned, how often, when the process is killed, and what it had said
    "training": [
        ("csan_hf.training.output_folder.write_text", 1, NEW),  # the very first start
        ("transformers.trainer.Trainer._save_rng_state", 1, NEW),  # the first save
        (
            "csan_hf.training.trainer.TranslationTrainer.save_model",
            2,
            NEW,
        ),  # a save with one before it
        (
            "csan_hf.training.checkpoints.Path.rename",
            1,
            "checkpoint-4 (--overwrite",
        ),  # rotation, resumed
        (None, None, "checkpoint-8 (--overwrite"),
    ],
    "end": [
        ("csan_hf.training.run.choose_weights", 1, NEW),
        ("csan_hf.hub.checkpoint.os.replace", 4, END),  # half of the model's files moved
        ("csan_hf.training.run.draw_training", 1, END),  # all but the card written
        (None, None, END),
    ],
}


@pytest.mark.parametrize("phase", PLACES)
def test_a_run_that_is_killed_ends_alike(train, whole, tmp_path, phase):
    output = tmp_path / "out"
    for function, calls, report in PLACES[phase]:
        code, said = train(output, function, calls, signal.SIGKILL) if function else train(output)
        assert code == (-signal.SIGKILL if function else 0), said
        assert report in said
    files = "model.safetensors checkpoint-12/model.safetensors hypotheses/test.txt tokenizer.json"
    for name in files.split():
        assert (output / name).read_bytes() == (whole / name).read_bytes(), name
    assert names(output) == names(whole)
    assert [path.name for path in output.glob(".*")] == [MARK]
    results = [read_json(folder / "results.json") for folder in (whole, output)]
    assert results[0]["chosen"] == results[1]["chosen"]


AFTER = "after training, before the end of the run was written"


@pytest.mark.parametrize(
    ("function", "calls", "phase"),
    [
        ("begin_run", 1, "before training began"),
        ("choose_weights", 1, AFTER),
        ("write_lines", 2, AFTER),
    ],
)
def test_a_run_that_only_repeats_its_end_ends_by_a_swallowed_signal(
    function, calls, phase, train, whole, tmp_path
):
    output = shutil.copytree(whole, tmp_path / "out")
    code, said = train(output, f"csan_hf.training.run.{function}", calls, signal.SIGTERM)
    assert code == 128 + signal.SIGTERM, said
    assert f"Stopped by SIGTERM {phase}" in said


# ---- workers that load data: the signals that end a run are not for them


@pytest.mark.parametrize(
    ("number", "method"),
    [*((number, None) for number in STOP_SIGNALS), (signal.SIGTERM, "forkserver")],
)
def test_a_signal_to_the_whole_group_saves_a_checkpoint(make_trainer, capfd, number, method):
    if method == "forkserver":
        multiprocessing.get_context(method).set_forkserver_preload(["csan_hf.training"])
        # as its children, those of other tests must not be born with signals blocked
        forkserver.ensure_running()
    trainer = make_trainer(
        max_steps=12,
        eval_steps=12,
        max_tokens=700,
        dataloader_num_workers=2,
        dataloader_prefetch_factor=1,
        dataloader_multiprocessing_context=method,
        **LOSS_ALONE,
    )

    def signal_workers():
        workers = multiprocessing.active_children()
        assert len(workers) == 2
        for worker in workers:
            os.kill(worker.pid, number)

    stop = stop_by_signal(
        trainer, At(3, signal_workers), At(5, lambda: signal.raise_signal(number))
    )
    assert f"Stopped by {number.name} at update 5 of 12: saved in" in str(stop)
    assert find_fault(Path(trainer.args.output_dir) / "checkpoint-5") is None
