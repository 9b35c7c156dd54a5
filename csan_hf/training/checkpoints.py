# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Checkpoints of a run on disk: what they hold, which can be used, which are kept, their average.

A checkpoint is written under another name and renamed: `checkpoint-N` is complete.
"""

import contextlib
import itertools
import json
import shutil
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import FSDPModule
from transformers import TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from csan_hf_runtime.text_files import check_file_name, write_json

from .arguments import TranslationTrainingArguments
from .errors import RecipeError

UNFINISHED = "_unfinished"
"""Staging folder in `output_dir`: of checkpoints being written and of those being deleted."""

FACTS = "complete.json"
"""File in a checkpoint that says what it was trained on: number of processes, training and
validation set.
"""

# Read by a resumed run alone; deleted from checkpoints that are kept for their score.
RESUME_FILES = (
    "optimizer.*",
    "pytorch_model_fsdp.bin",
    "scheduler.pt",
    "scaler.pt",
    "rng_state*.pth",
    "stream_*.json",
)
_SHARDED = ("pytorch_model_fsdp*", "global_step*")  # weights in formats of FSDP and DeepSpeed


def name_checkpoint(written: Path, checkpoint: Path, facts: Mapping[str, Any]) -> None:
    """Notes the facts in a checkpoint that was written in the staging folder, and gives it its
    name.
    """
    write_json(written / FACTS, facts)
    if checkpoint.exists():
        delete_checkpoint(checkpoint)
    written.rename(checkpoint)
    written.parent.rmdir()


def check_same_data(checkpoint: Path, facts: Mapping[str, Any]) -> str | None:
    """Compares the facts of a run with those of a checkpoint to resume from.

    Returns:
        A notice if the number of processes differs, with which the batches differ; or None.

    Raises:
        RecipeError: If the training or validation set differs in any token.
    """
    saved = read_facts(checkpoint)
    for key in ("training_set", "validation_set"):
        before = saved[key]
        now = facts[key]
        if before and now and before["sha256"] != now["sha256"]:
            raise RecipeError(
                f"The {key.replace('_', ' ')} is not that of {checkpoint}: {before['pairs']:,} "
                f"pairs then, {now['pairs']:,} now, of other content. Restore the files, or "
                "choose another --output_dir, or --overwrite to delete the run."
            )
    before, now = saved["processes"], facts["processes"]
    if before == now:
        return None
    return (
        f"{checkpoint} was saved by {before} processes, now there are {now}: the batches from "
        "here on differ."
    )


def read_facts(checkpoint: Path) -> dict[str, Any]:
    """Reads what a checkpoint was trained on."""
    return json.loads((checkpoint / FACTS).read_bytes())


def write_stream_state(
    checkpoint: Path, args: TranslationTrainingArguments, state: Mapping[str, Any]
) -> None:
    """Writes where this process stands in the stream that it trains on."""
    write_json(_stream_file(checkpoint, args), state)


def read_stream_state(checkpoint: Path, args: TranslationTrainingArguments) -> dict[str, Any]:
    """Reads where this process stood.

    Raises:
        RecipeError: The checkpoint was not saved by as many processes on a stream.
    """
    path = _stream_file(checkpoint, args)
    if not path.is_file():
        raise RecipeError(
            f"{checkpoint} has no {path.name}: a run on a stream goes on with as many processes. "
            "Start it with those, or choose another --output_dir."
        )
    return json.loads(path.read_bytes())


def _stream_file(checkpoint: Path, args: TranslationTrainingArguments) -> Path:
    return checkpoint / f"stream_{args.process_index}_of_{args.world_size}.json"


def find_fault(checkpoint: Path, *, to_resume: bool = True) -> str | None:
    """Says what is missing or damaged in a checkpoint, of its weights alone unless `to_resume`;
    None if nothing is.
    """
    fault = None
    if to_resume:
        fault = _unreadable_text(checkpoint) or _missing_state(checkpoint)
    return fault or _unreadable_weights(checkpoint)


def _unreadable_text(checkpoint: Path) -> str | None:
    """Finds a file of settings, state or tokenizers that is missing, empty or cut off."""
    try:
        state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
    except (OSError, ValueError, TypeError) as error:
        return f"{TRAINER_STATE_NAME} cannot be read ({error})"
    if state.global_step != checkpoint_step(checkpoint):
        return f"{TRAINER_STATE_NAME} is of update {state.global_step}"
    required = {checkpoint / name for name in (CONFIG_NAME, "tokenizer_config.json", FACTS)}
    for path in sorted(required.union(checkpoint.rglob("*.json"))):
        try:
            json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            return f"{path.relative_to(checkpoint)} cannot be read ({error})"
    return None


def _missing_state(checkpoint: Path) -> str | None:
    """Finds what a resumed run would begin anew: optimizer, learning rate, random numbers."""
    if not _holds(checkpoint, "optimizer*", *_SHARDED):
        return "it was saved without the optimizer's state"
    processes = read_facts(checkpoint)["processes"]
    states = ["rng_state.pth"]
    if processes > 1:
        states = [f"rng_state_{rank}.pth" for rank in range(processes)]
    if not _holds(checkpoint, "global_step*"):  # DeepSpeed may keep the schedule
        states.append("scheduler.pt")
    for name in states:
        if not (checkpoint / name).is_file():
            return f"it was saved without {name}"
    for path in _matching(checkpoint, RESUME_FILES):
        # torch saves ZIP archives, which have their table of contents at the end
        if path.suffix != ".json" and not zipfile.is_zipfile(path):
            return f"{path.name} is cut off"
    return None


def _unreadable_weights(checkpoint: Path) -> str | None:
    if _holds(checkpoint, *_SHARDED):
        return None
    try:
        for path in _weight_paths(checkpoint):
            # Opening compares the size with what the file says of its tensors
            with safe_open(path, framework="pt"):
                pass
    except (SafetensorError, OSError, ValueError) as error:
        return f"its weights cannot be read ({error})"
    return None


def _matching(checkpoint: Path, patterns: Iterable[str]) -> Iterator[Path]:
    for pattern in patterns:
        yield from checkpoint.glob(pattern)


def _holds(checkpoint: Path, *patterns: str) -> bool:
    return any(_matching(checkpoint, patterns))


def _weight_paths(checkpoint: Path) -> list[Path]:
    index = checkpoint / SAFE_WEIGHTS_INDEX_NAME
    if not index.is_file():
        return [checkpoint / SAFE_WEIGHTS_NAME]
    files = set(json.loads(index.read_bytes())["weight_map"].values())
    return [
        checkpoint / check_file_name(name, f"{index}: the file of weights")
        for name in sorted(files)
    ]


def checkpoint_step(path: Path) -> int:
    """Returns the update at which a `checkpoint-N` folder was saved."""
    return int(path.name.removeprefix("checkpoint-"))


def list_checkpoints(output_dir: Path | str) -> list[Path]:
    """Returns the checkpoint folders under `output_dir`, oldest first."""
    checkpoints = []
    for path in Path(output_dir).glob("checkpoint-*"):
        if path.name.removeprefix("checkpoint-").isdecimal() and path.is_dir():
            checkpoints.append(path)
    return sorted(checkpoints, key=checkpoint_step)


def whole_checkpoints(output_dir: Path | str) -> Iterator[Path]:
    """Yields the checkpoints that a run can resume from, newest first."""
    for path in reversed(list_checkpoints(output_dir)):
        if find_fault(path) is None:
            yield path


def last_checkpoint(output_dir: Path | str) -> str:
    """Returns the path of the newest whole checkpoint, or "the start"."""
    return str(next(whole_checkpoints(output_dir), "the start"))


def delete_checkpoint(checkpoint: Path) -> None:
    """Deletes a checkpoint, or a link to one.

    It is moved to the staging folder first, so that an interrupted deletion leaves nothing that
    looks whole.
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


def values_by_step(log_history: Iterable[dict[str, float]], key: str) -> dict[int, float]:
    """Reads the values of a key out of the Trainer's log, by update."""
    return {int(entry["step"]): float(entry[key]) for entry in log_history if key in entry}


def scores_by_step(log_history: Iterable[dict[str, float]], metric: str) -> dict[int, float]:
    """Reads a validation metric, with or without the prefix `eval_`."""
    return values_by_step(log_history, f"eval_{metric.removeprefix('eval_')}")


def ranked_steps(args: TrainingArguments, log_history: Sequence[dict[str, float]]) -> list[int]:
    """Lists the evaluated updates of a run by their score, best first.

    Between equal scores the validation loss decides; of equals in both, the later comes first.
    """
    sign = -1.0 if args.greater_is_better else 1.0
    scores = scores_by_step(log_history, args.metric_for_best_model or "loss")
    losses = scores_by_step(log_history, "loss")
    return sorted(scores, key=lambda step: (sign * scores[step], losses.get(step, 0.0), -step))


def rank_checkpoints(args: TrainingArguments, state: TrainerState) -> list[Path]:
    """Lists the checkpoints of a run as `ranked_steps` does; those without a score are left out."""
    by_step = {checkpoint_step(path): path for path in list_checkpoints(str(args.output_dir))}
    return [by_step[step] for step in ranked_steps(args, state.log_history) if step in by_step]


def rotate_checkpoints(output_dir: Path | str, best: Collection[Path]) -> None:
    """Deletes all checkpoints but the best and the newest two, of which the second is for the case
    that the first is damaged.

    Those kept for their score alone lose the optimiser's state, two thirds of their size.
    """
    checkpoints = list_checkpoints(output_dir)
    newest = list(itertools.islice(whole_checkpoints(output_dir), 2)) or checkpoints[-1:]
    for path in checkpoints:
        if path in newest or path.is_symlink():  # a link may lead to another run's
            continue
        if path not in best:
            delete_checkpoint(path)
            continue
        for file in _matching(path, RESUME_FILES):
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
    """Loads all weights of a model; a sharded model takes its part of each."""
    if not isinstance(model, FSDPModule):
        # A model may know names that its state_dict no longer has
        missing, unexpected = model.load_state_dict(weights, strict=False)
        check_names(model, missing=set(missing), unexpected=set(unexpected))
        return
    names = model.state_dict().keys()
    check_names(model, missing=names - weights.keys(), unexpected=weights.keys() - names)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # generation leaves whole weights behind
    # Of tied weights the first name alone
    stored = {name for name, _ in itertools.chain(model.named_parameters(), model.named_buffers())}
    ordered = sorted(stored & weights.keys())  # the processes meet at every tensor, in one order
    options = StateDictOptions(full_state_dict=True, strict=False)
    set_model_state_dict(model, {name: weights[name] for name in ordered}, options=options)


def check_names(model: nn.Module, missing: Iterable[str], unexpected: Iterable[str]) -> None:
    """Refuses the weights of another model; tied tensors are stored once, and computed positions
    not at all.
    """
    not_stored = {
        *(getattr(model, "all_tied_weights_keys", None) or ()),
        *(getattr(model, "_keys_to_ignore_on_save", None) or ()),
    }
    problems = []
    for kind, names in (("missing", {*missing} - not_stored), ("unexpected", {*unexpected})):
        if names:
            problems.append(f"{', '.join(sorted(names)[:5])} {kind}")
    if problems:
        raise ValueError(f"The weights do not fit the model: {'; '.join(problems)}.")
