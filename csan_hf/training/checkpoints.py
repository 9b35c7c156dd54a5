# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Checkpoints of a run: whether each can be used, their scores, which are kept, and the average of the best.

A checkpoint is written under another name and renamed: `checkpoint-N` is complete.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import FSDPModule
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from csan_hf.text_files import check_file_name, write_json

SAVING = "_saving"
"""Folder in `output_dir` in which a checkpoint is written before it gets its name."""

FACTS = "complete.json"
"""File in a checkpoint that says what it was trained on."""

# What only a resumed run reads; nothing else needs it in a checkpoint that is kept for its score.
RESUME_FILES = ("optimizer.*", "pytorch_model_fsdp.bin", "scheduler.pt", "scaler.pt", "rng_state*.pth")


def write_facts(checkpoint: Path, **facts: Any) -> None:
    """Notes in a checkpoint what a resumed run compares: number of processes, training and validation set."""
    write_json(checkpoint / FACTS, facts)


def read_facts(checkpoint: Path) -> dict[str, Any]:
    """Returns what `write_facts` wrote; nothing if that cannot be read."""
    try:
        facts = json.loads((checkpoint / FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def find_fault(checkpoint: Path, *, to_resume: bool = True) -> str | None:
    """Says what is missing or cut off in a checkpoint, in a few words; None if nothing is.

    With `to_resume` a run is to be resumed from it; otherwise its weights are enough.
    """
    if to_resume:
        try:
            TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            return f"{TRAINER_STATE_NAME} cannot be read ({error})"
        if not any(
            path
            for pattern in ("optimizer*", "pytorch_model_fsdp*", "global_step*")
            for path in checkpoint.glob(pattern)
        ):
            return "it was saved without the optimizer's state"
    if any(path for pattern in ("pytorch_model_fsdp*", "global_step*") for path in checkpoint.glob(pattern)):
        return None  # FSDP and DeepSpeed write formats of their own
    try:
        for path in _weight_paths(checkpoint):
            with safe_open(path, framework="pt"):  # compares the size with what the file says of its tensors
                pass
    except (SafetensorError, OSError, ValueError) as error:
        return f"its weights cannot be read ({error})"
    return None


def _weight_paths(checkpoint: Path) -> list[Path]:
    index = checkpoint / SAFE_WEIGHTS_INDEX_NAME
    if index.is_file():
        files = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        return [checkpoint / check_file_name(name, f"{index}: the file of weights") for name in sorted(files)]
    if (checkpoint / SAFE_WEIGHTS_NAME).is_file():
        return [checkpoint / SAFE_WEIGHTS_NAME]
    raise ValueError(f"{checkpoint} holds no weights: expected {SAFE_WEIGHTS_NAME}")


def checkpoint_step(path: Path) -> int:
    """Returns the update at which a `checkpoint-N` folder was saved."""
    return int(path.name.removeprefix("checkpoint-"))


def list_checkpoints(output_dir: Path | str) -> list[Path]:
    """Returns the checkpoint folders under `output_dir`, oldest first."""
    folders = [path for path in Path(output_dir).glob("checkpoint-*") if path.is_dir()]
    return sorted((path for path in folders if re.fullmatch(r"checkpoint-\d+", path.name)), key=checkpoint_step)


def last_complete_checkpoint(output_dir: Path | str) -> Path | None:
    """Returns the newest checkpoint that a run can be resumed from, or None."""
    return next((path for path in reversed(list_checkpoints(output_dir)) if find_fault(path) is None), None)


def delete_checkpoint(checkpoint: Path) -> None:
    """Deletes a checkpoint, renamed first, so that an interrupted deletion leaves no folder that looks like one."""
    doomed = checkpoint.with_name(f"_deleted-{checkpoint.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    checkpoint.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def scores_by_step(log_history: Iterable[dict[str, float]], metric: str) -> dict[int, float]:
    """Reads a validation metric, with or without the prefix `eval_`, out of the Trainer's log, by update."""
    key = metric if metric.startswith("eval_") else f"eval_{metric}"
    return {int(entry["step"]): float(entry[key]) for entry in log_history if key in entry}


def rank_checkpoints(
    checkpoints: Sequence[Path],
    scores: dict[int, float],
    *,
    greater_is_better: bool = True,
    losses: dict[int, float] | None = None,
) -> list[Path]:
    """Sorts checkpoints, best first; those without a score are left out.

    Between equal scores the validation loss decides; of equals in both, the later comes first. Scores and losses are
    by update.
    """
    sign = -1.0 if greater_is_better else 1.0
    losses = losses or {}

    def key(path: Path) -> tuple[float, float, int]:
        step = checkpoint_step(path)
        return sign * scores[step], losses.get(step, 0.0), -step

    return sorted((path for path in checkpoints if checkpoint_step(path) in scores), key=key)


def rotate_checkpoints(
    output_dir: Path | str,
    scores: dict[int, float],
    *,
    keep_best: int,
    greater_is_better: bool = True,
    losses: dict[int, float] | None = None,
    protected: int | None = None,
) -> list[Path]:
    """Deletes all checkpoints but the best and the newest two: if the newest is damaged, a run resumes from the other.

    Those kept for their score alone lose the optimiser's state, two thirds of their size. The arguments are those of
    `rank_checkpoints`; the checkpoint of the update `protected` is kept in any case.

    Returns:
        What was deleted.
    """
    checkpoints = list_checkpoints(output_dir)
    complete = [path for path in checkpoints if find_fault(path) is None]
    newest = complete[-2:] or checkpoints[-1:]
    ranked = rank_checkpoints(checkpoints, scores, greater_is_better=greater_is_better, losses=losses)
    kept = {*newest, *ranked[:keep_best], *(path for path in checkpoints if checkpoint_step(path) == protected)}
    deleted = [path for path in checkpoints if path not in kept]
    for path in deleted:
        delete_checkpoint(path)
    for path in kept.difference(newest):
        for pattern in RESUME_FILES:
            for file in path.glob(pattern):
                file.unlink()
    return deleted


def read_weights(checkpoint: Path | str) -> dict[str, Tensor]:
    """Reads a checkpoint's weights, sharded or not, to the CPU.

    Raises:
        ValueError: If the folder holds no safetensors weights, or if its index names files elsewhere.
    """
    weights: dict[str, Tensor] = {}
    for path in _weight_paths(Path(checkpoint)):
        weights.update(load_file(path))
    return weights


def average_weights(checkpoints: Sequence[Path | str]) -> dict[str, Tensor]:
    """Averages the weights of several checkpoints (Vaswani et al. 2017, section 6.1).

    Floating-point tensors are summed in float32 (float64 stays float64) and returned in their own type; others
    (counters, masks) are taken from the first checkpoint.

    Args:
        checkpoints: Folders with safetensors weights of one model, best first.

    Raises:
        ValueError: If there are none, or if their tensors differ in name or shape.
    """
    if not checkpoints:
        raise ValueError("average_weights needs at least one checkpoint, got none.")
    first = read_weights(checkpoints[0])
    sums = {
        name: tensor.to(torch.promote_types(tensor.dtype, torch.float32), copy=True)
        for name, tensor in first.items()
        if tensor.is_floating_point()
    }
    for checkpoint in checkpoints[1:]:
        weights = read_weights(checkpoint)
        if {name: t.shape for name, t in weights.items()} != {name: t.shape for name, t in first.items()}:
            raise ValueError(f"{checkpoint} and {checkpoints[0]} hold different tensors: they cannot be averaged.")
        for name, total in sums.items():
            total += weights[name]
    averaged = {name: (total / len(checkpoints)).to(first[name].dtype) for name, total in sums.items()}
    return {name: averaged.get(name, tensor) for name, tensor in first.items()}


def load_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Loads weights into a model, whose tied tensors are stored once; a sharded model takes its part of each.

    Raises:
        ValueError: If names do not fit the model.
    """
    if isinstance(model, FSDPModule):
        _load_sharded(model, weights)
        return
    missing, unexpected = model.load_state_dict(weights, strict=False)
    stored = {tensor.data_ptr() for name, tensor in model.state_dict().items() if name in weights}
    absent = [name for name in missing if model.state_dict()[name].data_ptr() not in stored]
    # What is not trained (sinusoidal positions, for example) is recomputed and may be missing.
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    absent = [name for name in absent if name in trained]
    if absent or unexpected:
        raise ValueError(f"The weights do not fit the model: missing {absent[:5]}, unexpected {unexpected[:5]}.")


def _load_sharded(model: nn.Module, weights: dict[str, Tensor]) -> None:
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # generation leaves whole weights behind
    trained = {name for name, _ in model.named_parameters()}  # of tied ones the first name alone
    if absent := sorted(trained - weights.keys()):
        raise ValueError(f"The weights do not fit the model: missing {absent[:5]}.")
    known = trained | {name for name, _ in model.named_buffers()}
    ordered = sorted(known & weights.keys())  # the processes meet at every tensor, in one order
    options = StateDictOptions(full_state_dict=True, strict=False)
    set_model_state_dict(model, {name: weights[name] for name in ordered}, options=options)
