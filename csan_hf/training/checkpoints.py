# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Checkpoints of a run: whether each is whole, their scores, which are kept, and the average of the best."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import FSDPModule
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from csan_hf.hub.public_files import weight_files
from csan_hf.text_files import write_json

FILE_LIST = "complete.json"
"""The file that a save ends with: names, sizes and SHA-256 of all others."""

# What only a resumed run reads; nothing else needs it in a checkpoint that is kept for its score.
RESUME_FILES = ("optimizer.*", "pytorch_model_fsdp.bin", "scheduler.pt", "scaler.pt", "rng_state*.pth")

_FOLDERS_OF_SHARDS = ("pytorch_model_fsdp*", "global_step*")  # of FSDP and DeepSpeed, which write their own formats


def mark_complete(checkpoint: Path, **facts: Any) -> None:
    """Writes the list of a checkpoint's files, which marks the checkpoint as complete.

    Args:
        checkpoint: A `checkpoint-N` folder in which everything is written.
        facts: More to keep, for example the number of processes.
    """
    files = {
        path.relative_to(checkpoint).as_posix(): {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        for path in sorted(checkpoint.rglob("*"))
        if path.is_file() and path.name != FILE_LIST
    }
    write_json(checkpoint / FILE_LIST, {**facts, "files": files})


def mark_incomplete(checkpoint: Path) -> None:
    """Marks a folder as unfinished before it is written to again."""
    (checkpoint / FILE_LIST).unlink(missing_ok=True)


def read_file_list(checkpoint: Path) -> dict[str, Any] | None:
    """Returns what `mark_complete` wrote, or None if there is no such list or it is malformed."""
    try:
        listed = json.loads((checkpoint / FILE_LIST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return listed if isinstance(listed, dict) and _lists_files(listed.get("files")) and _has_facts(listed) else None


def _has_facts(listed: dict[str, Any]) -> bool:
    """Says whether the facts about the run in a list of files, where there are any, have the right types."""
    sets = [listed[key] for key in ("training_set", "validation_set") if listed.get(key) is not None]
    described = all(isinstance(facts, dict) and isinstance(facts.get("pairs"), int) for facts in sets)
    return described and isinstance(listed.get("processes", 1), int)


def _lists_files(files: Any) -> bool:
    """Says whether a list names files in its folder, with sizes and hashes: it may be damaged or malicious."""
    return isinstance(files, dict) and all(
        isinstance(facts, dict)
        and isinstance(facts.get("bytes"), int)
        and isinstance(facts.get("sha256"), str)
        and PurePosixPath(name).parts
        and not PurePosixPath(name).is_absolute()
        and ".." not in PurePosixPath(name).parts
        and "\0" not in name
        for name, facts in files.items()
    )


def is_unfinished(checkpoint: Path) -> bool:
    """Says whether the save was cut off: there is no list of files, and the files written last are missing."""
    return read_file_list(checkpoint) is None and _find_fault_in_state(checkpoint) is not None


def find_fault(checkpoint: Path, *, to_resume: bool = True, thorough: bool = True) -> str | None:
    """Says what is wrong with a checkpoint, in a few words; None if nothing is.

    A folder without a list of files (the save was cut off, or an older version wrote it) counts as whole if every
    file that a run reads can be read.

    Args:
        checkpoint: A `checkpoint-N` folder.
        to_resume: Whether a run is to be resumed from it; otherwise its weights are enough.
        thorough: Whether to read the files: their hashes, and whether all weights are finite. False compares sizes.
    """
    listed = read_file_list(checkpoint)
    if listed is not None:
        fault = _find_fault_by_list(checkpoint, listed, to_resume=to_resume, thorough=thorough)
        if fault is None and to_resume:
            fault = _find_fault_in_state(checkpoint)
    else:
        fault = _find_fault_in_state(checkpoint) if to_resume else None
        if fault is not None:
            return f"its save was cut off: {fault}"
        fault = _find_fault_in_resume_files(checkpoint, thorough=thorough) if to_resume else None
    if fault is None and to_resume:
        fault = _find_foreign_keys(checkpoint)
    if fault is None and thorough:
        fault = _find_fault_in_weights(checkpoint)
    return fault


def _find_fault_by_list(checkpoint: Path, listed: dict[str, Any], *, to_resume: bool, thorough: bool) -> str | None:
    if to_resume and not any(re.match(r"optimizer|global_step", name) for name in listed["files"]):
        return "it was saved without the optimizer's state"
    for name, facts in listed["files"].items():
        path = checkpoint / name
        only_to_resume = any(path.match(pattern) for pattern in RESUME_FILES) or name == TRAINER_STATE_NAME
        if only_to_resume and not to_resume:
            continue
        if not path.is_file():
            return f"{name} is missing"
        size = path.stat().st_size
        if size != facts["bytes"]:
            return f"{name} has {size:,} of {facts['bytes']:,} bytes"
        if thorough and _sha256(path) != facts["sha256"]:
            return f"{name} is damaged: it is not what was saved"
    return None


def _find_fault_in_state(checkpoint: Path) -> str | None:
    path = checkpoint / TRAINER_STATE_NAME
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"{TRAINER_STATE_NAME} is missing"
    except (OSError, ValueError, RecursionError):
        return f"{TRAINER_STATE_NAME} cannot be read"
    steps = [state.get(name) for name in ("global_step", "max_steps")] if isinstance(state, dict) else []
    if not steps or not all(type(step) is int and step >= 0 for step in steps[: 1 + (steps[1] is not None)]):
        return f"{TRAINER_STATE_NAME} names no update"
    history = state.get("log_history", [])
    well_formed = isinstance(history, list) and all(isinstance(entry, dict) for entry in history)
    return None if well_formed else f"{TRAINER_STATE_NAME} has no log"


def _find_foreign_keys(checkpoint: Path) -> str | None:
    """Says whether the Trainer's state holds what this version of the library does not read."""
    try:
        TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
    except (TypeError, AttributeError, ValueError) as error:
        return f"{TRAINER_STATE_NAME} is of another version of transformers ({error})"
    return None


def _find_fault_in_resume_files(checkpoint: Path, *, thorough: bool) -> str | None:
    """Looks at a checkpoint without a list of files."""
    if _has_shards(checkpoint):
        return None if any(checkpoint.glob("optimizer*")) or any(checkpoint.glob("global_step*")) else "no optimizer"
    for name in ("optimizer.pt", "scheduler.pt", "rng_state*.pth"):
        paths = list(checkpoint.glob(name))
        if not paths:
            return f"{name} is missing"
        for path in paths if thorough else ():
            if not _torch_reads(path):
                return f"{path.name} cannot be read"
    return None


def _torch_reads(path: Path) -> bool:
    # Random states of numpy and Python are pickled classes, which weights_only refuses: its refusal means that the
    # file is whole, for it is reached by reading the archive's directory, at the end.
    try:
        torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        return path.name.startswith("rng_state")
    except (OSError, RuntimeError, ValueError, EOFError):
        return False
    return True


def _find_fault_in_weights(checkpoint: Path) -> str | None:
    try:
        weights = read_weights(checkpoint)
    except (SafetensorError, OSError) as error:
        return f"its weights cannot be read ({error})"
    except ValueError as error:
        if (checkpoint / SAFE_WEIGHTS_INDEX_NAME).is_file():
            return str(error)
        return None if _has_shards(checkpoint) else f"{SAFE_WEIGHTS_NAME} is missing"
    bad = [name for name, tensor in weights.items() if not is_finite(tensor)]
    return f"{len(bad)} of its {len(weights)} weights are not finite ({bad[0]}...)" if bad else None


def is_finite(tensor: Tensor) -> bool:
    """Says whether a tensor holds neither NaN nor infinity."""
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())


def _has_shards(checkpoint: Path) -> bool:
    """Says whether FSDP or DeepSpeed wrote the weights in parts, in formats of their own."""
    single = (checkpoint / SAFE_WEIGHTS_NAME).is_file() or (checkpoint / SAFE_WEIGHTS_INDEX_NAME).is_file()
    return not single and any(True for pattern in _FOLDERS_OF_SHARDS for _ in checkpoint.glob(pattern))


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


# ---- which there are, which are kept, their weights

# The newest and the one before, in case that the newest is damaged.
_RESUMABLE = 2


def checkpoint_step(path: Path) -> int:
    """Returns the update at which a `checkpoint-N` folder was saved.

    Raises:
        ValueError: If the folder is not named like that.
    """
    match = re.fullmatch(r"checkpoint-(\d+)", path.name)
    if match is None:
        raise ValueError(f"{path} is not a checkpoint folder: expected a name like checkpoint-500.")
    return int(match.group(1))


def list_checkpoints(output_dir: Path | str) -> list[Path]:
    """Returns the checkpoint folders under `output_dir`, oldest first, unfinished ones included."""
    folders = [path for path in Path(output_dir).glob("checkpoint-*") if path.is_dir()]
    return sorted((path for path in folders if re.fullmatch(r"checkpoint-\d+", path.name)), key=checkpoint_step)


def last_complete_checkpoint(output_dir: Path | str) -> Path | None:
    """Returns the newest checkpoint whose files are all there in their sizes, or None; their contents are not read."""
    complete = [path for path in list_checkpoints(output_dir) if find_fault(path, thorough=False) is None]
    return complete[-1] if complete else None


def delete_checkpoint(checkpoint: Path) -> None:
    """Deletes a checkpoint, renamed first, so that an interrupted deletion leaves no folder that looks like one."""
    doomed = checkpoint.with_name(f"_deleted-{checkpoint.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    checkpoint.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def scores_by_step(log_history: Iterable[dict[str, float]], metric: str) -> dict[int, float]:
    """Reads a validation metric out of the Trainer's log.

    Args:
        log_history: `trainer.state.log_history`.
        metric: With or without the prefix `eval_`.

    Returns:
        Update number to score.
    """
    key = metric if metric.startswith("eval_") else f"eval_{metric}"
    return {int(entry["step"]): float(entry[key]) for entry in log_history if key in entry}


def rank_checkpoints(
    checkpoints: Sequence[Path],
    scores: dict[int, float],
    *,
    greater_is_better: bool = True,
    losses: dict[int, float] | None = None,
) -> list[Path]:
    """Sorts checkpoints, best first.

    Args:
        checkpoints: `checkpoint-N` folders; those without a score are left out.
        scores: Update number to score.
        greater_is_better: Whether a high score is good.
        losses: Update number to validation loss, which decides between equal scores; of equals in both, the
            later comes first.
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

    Those kept for their score alone lose the optimiser's state, two thirds of their size.

    Args:
        output_dir: Folder with the `checkpoint-N` folders.
        scores: Update number to score.
        keep_best: How many to keep for their score.
        greater_is_better: Whether a high score is good.
        losses: As in `rank_checkpoints`.
        protected: The update of a checkpoint that is kept in any case.

    Returns:
        What was deleted.
    """
    checkpoints = list_checkpoints(output_dir)
    if not checkpoints:
        return []
    complete = [path for path in checkpoints if find_fault(path, thorough=False) is None]
    newest = complete[-_RESUMABLE:] or checkpoints[-1:]
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
    checkpoint = Path(checkpoint)
    index = checkpoint / SAFE_WEIGHTS_INDEX_NAME
    if index.is_file():
        names = weight_files(index)
    elif (checkpoint / SAFE_WEIGHTS_NAME).is_file():
        names = [SAFE_WEIGHTS_NAME]
    else:
        raise ValueError(f"{checkpoint} holds no weights: expected {SAFE_WEIGHTS_NAME}.")
    weights: dict[str, Tensor] = {}
    for name in names:
        weights.update(load_file(checkpoint / name))
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
    sums = {name: _accumulator(tensor) for name, tensor in first.items() if tensor.is_floating_point()}
    for checkpoint in checkpoints[1:]:
        weights = read_weights(checkpoint)
        if {name: t.shape for name, t in weights.items()} != {name: t.shape for name, t in first.items()}:
            raise ValueError(f"{checkpoint} and {checkpoints[0]} hold different tensors: they cannot be averaged.")
        for name, total in sums.items():
            total += weights[name]
    averaged = {name: (total / len(checkpoints)).to(first[name].dtype) for name, total in sums.items()}
    return {name: averaged.get(name, tensor) for name, tensor in first.items()}


def _accumulator(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32), copy=True)


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
