"""Whether a checkpoint is whole: a list of its files, written last, and what is wrong where they differ from it."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from csan_hf.files import write_json

SEAL = "complete.json"
"""The file that a save ends with: names, sizes and SHA-256 of all others."""

# What only a resumed run reads; nothing else needs it in a checkpoint that is kept for its score.
RESUME_FILES = ("optimizer.*", "pytorch_model_fsdp.bin", "scheduler.pt", "scaler.pt", "rng_state*.pth")

_FOLDERS_OF_SHARDS = ("pytorch_model_fsdp*", "global_step*")  # of FSDP and DeepSpeed, which write their own formats


def seal_checkpoint(checkpoint: Path, **facts: Any) -> None:
    """Writes the list of a checkpoint's files: a folder that has it was saved to the end.

    Args:
        checkpoint: a ``checkpoint-N`` folder in which everything is written.
        facts: more to keep, for example the number of processes.
    """
    files = {
        path.relative_to(checkpoint).as_posix(): {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        for path in sorted(checkpoint.rglob("*"))
        if path.is_file() and path.name != SEAL
    }
    write_json(checkpoint / SEAL, {**facts, "files": files})


def break_seal(checkpoint: Path) -> None:
    """Marks a folder as unfinished before it is written to again."""
    (checkpoint / SEAL).unlink(missing_ok=True)


def read_seal(checkpoint: Path) -> dict[str, Any] | None:
    """Returns what `seal_checkpoint` wrote, or None where the save did not get so far."""
    try:
        seal = json.loads((checkpoint / SEAL).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return seal if isinstance(seal, dict) and _lists_files(seal.get("files")) and _has_facts(seal) else None


def _has_facts(seal: dict[str, Any]) -> bool:
    """Says whether what a seal tells of the run, as far as it does, has the types that it was written with."""
    sets = [seal[key] for key in ("training_set", "validation_set") if seal.get(key) is not None]
    described = all(isinstance(facts, dict) and isinstance(facts.get("pairs"), int) for facts in sets)
    return described and isinstance(seal.get("processes", 1), int)


def _lists_files(files: Any) -> bool:
    """Says whether a list names files in its folder, with sizes and hashes: it may be damaged, or made to mislead."""
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
    """Says whether the save was cut off: no list of files, and what the Trainer writes last is not all there."""
    return read_seal(checkpoint) is None and _find_fault_in_state(checkpoint) is not None


def find_fault(checkpoint: Path, *, to_resume: bool = True, thorough: bool = True) -> str | None:
    """Says what is wrong with a checkpoint, in a few words; None if nothing is.

    A folder without a list of files (the save was cut off, or an older version wrote it) counts as whole if every
    file that a run reads can be read.

    Args:
        checkpoint: a ``checkpoint-N`` folder.
        to_resume: whether a run is to go on from it; otherwise its weights are enough.
        thorough: whether to read the files: their hashes, and whether all weights are finite. False compares sizes.
    """
    seal = read_seal(checkpoint)
    if seal is not None:
        fault = _find_fault_by_seal(checkpoint, seal, to_resume=to_resume, thorough=thorough)
        if fault is None and to_resume:
            fault = _find_fault_in_state(checkpoint)
    else:
        fault = _find_fault_in_state(checkpoint) if to_resume else None
        if fault is not None:
            return f"its save was cut off: {fault}"
        fault = _find_fault_in_resume_files(checkpoint, thorough=thorough) if to_resume else None
    if fault is None and thorough:
        fault = _find_fault_in_weights(checkpoint)
    return fault


def _find_fault_by_seal(checkpoint: Path, seal: dict[str, Any], *, to_resume: bool, thorough: bool) -> str | None:
    if to_resume and not any(re.match(r"optimizer|global_step", name) for name in seal["files"]):
        return "it was saved without the optimizer's state"
    for name, facts in seal["files"].items():
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
        TrainerState.load_from_json(str(path))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):  # of JSON, or of keys that are no state's
        return f"{TRAINER_STATE_NAME} cannot be read"
    steps = [state.get(name) for name in ("global_step", "max_steps")] if isinstance(state, dict) else []
    if not steps or not all(type(step) is int and step >= 0 for step in steps[: 1 + (steps[1] is not None)]):
        return f"{TRAINER_STATE_NAME} names no update"
    history = state.get("log_history", [])
    well_formed = isinstance(history, list) and all(isinstance(entry, dict) for entry in history)
    return None if well_formed else f"{TRAINER_STATE_NAME} has no log"


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
    from .checkpoints import read_weights

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
