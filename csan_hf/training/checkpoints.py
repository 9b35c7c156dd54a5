# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Checkpoints of a run: written by the trainer, which are kept, whether each can be used, the
average of the best.

A checkpoint is written under another name and renamed: `checkpoint-N` is complete.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import re
import shutil
import sys
import zipfile
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import FSDPModule
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, HubStrategy
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, PushInProgress

from csan_hf.data import describe_dataset
from csan_hf.hub.push import push_checkpoint, push_in_background
from csan_hf.text_files import apply_umask, check_file_name, write_json

from .evaluation import EvaluatingTrainer
from .recipe import RecipeError
from .stopping import RunError

UNFINISHED = "_unfinished"
"""Folder in `output_dir` in which a checkpoint is written before it gets its name, and deleted when
it has lost it.
"""

FACTS = "complete.json"
"""File in a checkpoint that says what it was trained on: number of processes, training and
validation set.
"""

# What only a resumed run reads; nothing else needs it in a checkpoint that is kept for its score.
RESUME_FILES = (
    "optimizer.*",
    "pytorch_model_fsdp.bin",
    "scheduler.pt",
    "scaler.pt",
    "rng_state*.pth",
)
_SHARDED = ("pytorch_model_fsdp*", "global_step*")  # in formats of FSDP's and DeepSpeed's own


def read_facts(checkpoint: Path) -> dict[str, Any]:
    """Returns what a checkpoint says of its training; nothing for one of an older version."""
    path = checkpoint / FACTS
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def find_fault(checkpoint: Path, *, to_resume: bool = True) -> str | None:
    """Says what is missing or cut off in a checkpoint, of its weights alone unless `to_resume`;
    None if nothing is.
    """
    if to_resume:
        try:
            TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
        except (OSError, ValueError, TypeError) as error:
            return f"{TRAINER_STATE_NAME} cannot be read ({error})"
        if not _holds(checkpoint, "optimizer*", *_SHARDED):
            return "it was saved without the optimizer's state"
        for path in itertools.chain.from_iterable(map(checkpoint.glob, RESUME_FILES)):
            if not zipfile.is_zipfile(
                path
            ):  # what torch saves is one, with its table of contents at the end
                return f"{path.name} is cut off"
    try:
        for path in () if _holds(checkpoint, *_SHARDED) else _weight_paths(checkpoint):
            with safe_open(
                path, framework="pt"
            ):  # compares the size with what the file says of its tensors
                pass
    except (SafetensorError, OSError, ValueError) as error:
        return f"its weights cannot be read ({error})"
    return None


def _holds(checkpoint: Path, *patterns: str) -> bool:
    return any(path for pattern in patterns for path in checkpoint.glob(pattern))


def _weight_paths(checkpoint: Path) -> list[Path]:
    index = checkpoint / SAFE_WEIGHTS_INDEX_NAME
    if not index.is_file():
        return [checkpoint / SAFE_WEIGHTS_NAME]
    files = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    return [
        checkpoint / check_file_name(name, f"{index}: the file of weights")
        for name in sorted(files)
    ]


def checkpoint_step(path: Path) -> int:
    """Returns the update at which a `checkpoint-N` folder was saved."""
    return int(path.name.removeprefix("checkpoint-"))


def list_checkpoints(output_dir: Path | str) -> list[Path]:
    """Returns the checkpoint folders under `output_dir`, oldest first."""
    folders = [
        path
        for path in Path(output_dir).glob("checkpoint-*")
        if re.fullmatch(r"\w+-\d+", path.name)
    ]
    return sorted(filter(Path.is_dir, folders), key=checkpoint_step)


def delete_checkpoint(checkpoint: Path) -> None:
    """Deletes a checkpoint, which loses its name first: an interrupted deletion leaves none that
    looks whole.

    Of a link, only the link is deleted.
    """
    if checkpoint.is_symlink():
        checkpoint.unlink()
        return
    doomed = checkpoint.parent / UNFINISHED / f"deleted-{checkpoint.name}"
    doomed.parent.mkdir(exist_ok=True)
    checkpoint.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)
    with contextlib.suppress(OSError):  # a checkpoint is being written there
        doomed.parent.rmdir()


def scores_by_step(log_history: Iterable[dict[str, float]], metric: str) -> dict[int, float]:
    """Reads a validation metric, with or without the prefix `eval_`, out of the Trainer's log, by
    update.
    """
    key = f"eval_{metric.removeprefix('eval_')}"
    return {int(entry["step"]): float(entry[key]) for entry in log_history if key in entry}


def rank_checkpoints(
    checkpoints: Sequence[Path],
    log_history: Sequence[dict[str, float]],
    metric: str,
    *,
    greater_is_better: bool = True,
) -> list[Path]:
    """Sorts checkpoints by a validation metric, best first; those without a score are left out.

    Between equal scores the validation loss decides; of equals in both, the later comes first.
    """
    sign = -1.0 if greater_is_better else 1.0
    scores, losses = scores_by_step(log_history, metric), scores_by_step(log_history, "loss")
    by_step = {checkpoint_step(path): path for path in checkpoints}
    ranked = sorted(
        by_step.keys() & scores,
        key=lambda step: (sign * scores[step], losses.get(step, 0.0), -step),
    )
    return [by_step[step] for step in ranked]


def rotate_checkpoints(output_dir: Path | str, best: Collection[Path]) -> None:
    """Deletes all checkpoints but the best and the newest two: if the newest is damaged, a run
    resumes from the other.

    Those kept for their score alone lose the optimiser's state, two thirds of their size.
    """
    checkpoints = list_checkpoints(output_dir)
    newest = [path for path in checkpoints if find_fault(path) is None][-2:] or checkpoints[-1:]
    for path in checkpoints:
        if path in newest or path.is_symlink():  # what a link leads to may be another run's
            continue
        if path not in best:
            delete_checkpoint(path)
            continue
        for file in itertools.chain.from_iterable(map(path.glob, RESUME_FILES)):
            file.unlink()


def read_weights(checkpoint: Path | str) -> dict[str, Tensor]:
    """Reads a checkpoint's safetensors weights, in one file or several, to the CPU."""
    weights: dict[str, Tensor] = {}
    for path in _weight_paths(Path(checkpoint)):
        weights.update(load_file(path))
    return weights


def _shapes(weights: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in weights.items()}


def average_weights(checkpoints: Sequence[Path | str]) -> dict[str, Tensor]:
    """Averages the weights of several checkpoints (Vaswani et al. 2017, section 6.1).

    Floating-point tensors are summed in float32 (float64 stays float64) and returned in their own
    type; counters are those of the first checkpoint.

    Args:
        checkpoints: One folder or more with safetensors weights of one model, best first.

    Raises:
        ValueError: If their names or shapes differ.
    """
    first = read_weights(checkpoints[0])
    sums = {
        name: tensor.to(torch.promote_types(tensor.dtype, torch.float32), copy=True)
        for name, tensor in first.items()
        if tensor.is_floating_point()
    }
    for checkpoint in checkpoints[1:]:
        weights = read_weights(checkpoint)
        if _shapes(weights) != _shapes(first):
            raise ValueError(
                f"{checkpoint} and {checkpoints[0]} hold different weights: name checkpoints of "
                "one model."
            )
        for name, total in sums.items():
            total += weights[name]
    averaged = {
        name: (total / len(checkpoints)).to(first[name].dtype) for name, total in sums.items()
    }
    return {**first, **averaged}


def load_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Loads weights into a model, which must be all of its own; a sharded model takes its part of
    each.
    """
    names = model.state_dict().keys()
    _check_names(model, names - weights.keys(), weights.keys() - names)
    if not isinstance(model, FSDPModule):
        model.load_state_dict(weights, strict=False)
        return
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # generation leaves whole weights behind
    # Of tied weights the first name alone
    known = {name for name, _ in itertools.chain(model.named_parameters(), model.named_buffers())}
    ordered = sorted(known & weights.keys())  # the processes meet at every tensor, in one order
    options = StateDictOptions(full_state_dict=True, strict=False)
    set_model_state_dict(model, {name: weights[name] for name in ordered}, options=options)


def _check_names(model: nn.Module, missing: Iterable[str], unexpected: Iterable[str]) -> None:
    """Refuses the weights of another model; tied tensors are stored once, and computed positions
    not at all.
    """
    computed = (
        getattr(model, name, None) or ()
        for name in ("all_tied_weights_keys", "_keys_to_ignore_on_save")
    )
    wrong = {"missing": {*missing}.difference(*computed), "unexpected": {*unexpected}}
    if found := [
        f"{', '.join(sorted(names)[:5])} {kind}" for kind, names in wrong.items() if names
    ]:
        raise ValueError(f"The weights do not fit the model: {'; '.join(found)}.")


class SavingTrainer(EvaluatingTrainer):
    """The part of `TranslationTrainer` that saves, loads and uploads."""

    push_in_progress: Any
    _is_saving = False

    def _get_output_dir(self, trial: Any) -> str:
        folder = super()._get_output_dir(trial)
        return str(Path(folder, UNFINISHED)) if self._is_saving else folder

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Saves a checkpoint in a temporary folder, and renames it when all processes have written
        theirs.

        Raises a `RunError` if a loss or the weights are not finite, or if the disk is full or
        fails."""
        self.guard.check(self.model.state_dict().values())
        checkpoint = Path(
            self._get_output_dir(trial), f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        )
        folder = checkpoint.parent / UNFINISHED
        if self.args.should_save:
            shutil.rmtree(folder, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        self._is_saving = True
        try:
            super()._save_checkpoint(model, trial)
            self._name_best_checkpoint()
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                written = folder / checkpoint.name
                self.state.save_to_json(str(written / TRAINER_STATE_NAME))
                write_json(written / FACTS, {"step": self.state.global_step, **self.describe_run()})
                if checkpoint.exists():
                    delete_checkpoint(checkpoint)
                written.rename(checkpoint)
                folder.rmdir()
            self.accelerator.wait_for_everyone()
        except (OSError, RuntimeError, SafetensorError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise RunError(
                f"{checkpoint} could not be saved: {str(error).splitlines()[0]}; nothing was saved "
                f"since {self.last_checkpoint()}. Make room, then start the same command again "
                "(without --overwrite) to go on from there."
            ) from error
        finally:
            self._is_saving = False
        if self.args.push_to_hub:
            self._upload(checkpoint)

    def _name_best_checkpoint(self) -> None:
        """Corrects the library's path of the best checkpoint, which it takes while that is written."""
        if self.state.best_global_step and self.state.best_model_checkpoint:
            name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.best_global_step}"
            self.state.best_model_checkpoint = str(Path(self.args.output_dir, name))

    def last_checkpoint(self) -> str:
        """Returns the path of the newest complete checkpoint, or "the start"."""
        paths = reversed(list_checkpoints(self.args.output_dir))
        return str(next((path for path in paths if find_fault(path) is None), "the start"))

    def describe_run(self) -> dict[str, Any]:
        """Returns what is compared when a run is resumed: the number of processes, training and
        validation set.
        """
        return {"processes": self.args.world_size, **self._data_facts}

    @functools.cached_property
    def _data_facts(self) -> dict[str, Any]:
        train, validation = self.train_dataset, self.eval_dataset
        facts = (
            describe_dataset(validation, references=True)
            if isinstance(validation, Dataset)
            else None
        )
        return {
            "training_set": None if train is None else describe_dataset(train),
            "validation_set": facts,
        }

    def check_same_data(self, checkpoint: Path) -> None:
        """Raises a `RecipeError` if the training or validation set differs from a checkpoint's in
        any token.

        Another number of processes is allowed, with a notice: from there on the batches differ.
        """
        saved, now = read_facts(checkpoint), self.describe_run()
        for key in ("training_set", "validation_set"):
            before, here = saved.get(key), now[key]
            # A checkpoint of an older version may lack a set
            if (
                before
                and here
                and any(before[fact] != here[fact] for fact in before.keys() & here.keys())
            ):
                raise RecipeError(
                    f"The {key.replace('_', ' ')} is not that of {checkpoint}: {before['pairs']:,} "
                    f"pairs then, {here['pairs']:,} now, of other content. Restore the files, or "
                    "choose another --output_dir, or --overwrite to delete the run."
                )
        processes = saved.get("processes", now["processes"])
        if processes != now["processes"] and self.is_world_process_zero():
            notice = (
                f"{checkpoint} was saved by {processes} processes, now there are {now['processes']}"
            )
            print(f"{notice}: the batches from here on differ.", file=sys.stderr, flush=True)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Refuses what the library warns of."""
        _check_names(self.model, load_result.missing_keys, load_result.unexpected_keys)

    def _load_best_model(self) -> None:
        """Loads the best checkpoint; see `_load_from_checkpoint`."""
        self._name_best_checkpoint()
        if isinstance(self.model, FSDPModule):
            load_weights(self.model, read_weights(str(self.state.best_model_checkpoint)))
        else:
            super()._load_best_model()

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: nn.Module | None = None
    ) -> None:
        """Loads a checkpoint to resume from; a sharded model by `load_weights`: the library fails
        on tied weights.
        """
        if isinstance(self.model, FSDPModule):
            load_weights(self.model, read_weights(resume_from_checkpoint))
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _save(
        self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None
    ) -> None:
        # First: saving a model warns where its second tokenizer is missing
        self.tokenizers.save_pretrained(output_dir or self.args.output_dir)
        super()._save(output_dir, state_dict)
        apply_umask(Path(output_dir or self.args.output_dir).glob("*.safetensors"))

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Nothing: the library calls this while the checkpoint is written, and would upload the
        whole folder.
        """

    def _upload(self, checkpoint: Path) -> None:
        """Uploads the public files of a checkpoint in the background."""
        if not self.is_world_process_zero() or self.args.hub_strategy == HubStrategy.END:
            return
        pushing = self.push_in_progress is not None and not self.push_in_progress.is_done()
        if pushing and not self.args.hub_always_push:
            return
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        job = push_in_background(
            checkpoint,
            str(self.hub_model_id),
            recipe=Path(self.args.output_dir, "recipe.yaml"),
            token=self.args.hub_token,
            revision=self.args.hub_revision,
            commit_message=f"Training in progress, step {self.state.global_step}",
        )
        jobs: Any = (
            [*self.push_in_progress.jobs, job] if pushing else [job]
        )  # the library types one and takes several
        self.push_in_progress = PushInProgress(jobs)

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Saves the model and uploads its public files, which is waited for; see the library for
        the arguments.
        """
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        self.create_model_card(model_name=str(self.hub_model_id).split("/")[-1], **kwargs)
        self._finish_current_push()
        return push_checkpoint(
            self.args.output_dir,
            str(self.hub_model_id),
            token=token or self.args.hub_token,
            revision=revision or self.args.hub_revision,
            private=private,
            commit_message=str(commit_message),
            check=False,
        )
