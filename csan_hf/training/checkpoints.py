"""Finding, keeping and averaging checkpoints."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import FSDPModule
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from csan_hf.hub.public_files import weight_files

from .completeness import RESUME_FILES, find_fault

# The newest and the one before, in case that the newest is damaged.
_RESUMABLE = 2


def checkpoint_step(path: Path) -> int:
    """Returns the update at which a ``checkpoint-N`` folder was saved.

    Raises:
        ValueError: if the folder is not named like that.
    """
    match = re.fullmatch(r"checkpoint-(\d+)", path.name)
    if match is None:
        raise ValueError(f"{path} is not a checkpoint folder: expected a name like checkpoint-500.")
    return int(match.group(1))


def list_checkpoints(output_dir: Path | str) -> list[Path]:
    """Returns the checkpoint folders under ``output_dir``, oldest first, unfinished ones included."""
    folders = [path for path in Path(output_dir).glob("checkpoint-*") if path.is_dir()]
    return sorted((path for path in folders if re.fullmatch(r"checkpoint-\d+", path.name)), key=checkpoint_step)


def last_complete_checkpoint(output_dir: Path | str) -> Path | None:
    """Returns the newest checkpoint whose files are all there in their sizes, or None; their contents are not read."""
    complete = [path for path in list_checkpoints(output_dir) if find_fault(path, thorough=False) is None]
    return complete[-1] if complete else None


def delete_checkpoint(checkpoint: Path) -> None:
    """Deletes a checkpoint; what is left if that is cut off has no checkpoint's name."""
    doomed = checkpoint.with_name(f"_deleted-{checkpoint.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    checkpoint.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def scores_by_step(log_history: Iterable[dict[str, float]], metric: str) -> dict[int, float]:
    """Reads a validation metric out of the Trainer's log.

    Args:
        log_history: ``trainer.state.log_history``.
        metric: with or without the prefix ``eval_``.

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
        checkpoints: ``checkpoint-N`` folders; those without a score are left out.
        scores: update number to score.
        greater_is_better: whether a high score is good.
        losses: update number to validation loss, which decides between equal scores; of equals in both, the
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
        output_dir: folder with the ``checkpoint-N`` folders.
        scores: update number to score.
        keep_best: how many to keep for their score.
        greater_is_better: whether a high score is good.
        losses: as in `rank_checkpoints`.
        protected: the update of a checkpoint that stays in any case.

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
        ValueError: if the folder holds no safetensors weights, or if its index names files elsewhere.
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
        checkpoints: folders with safetensors weights of one model, best first.

    Raises:
        ValueError: if there are none, or if their tensors differ in name or shape.
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
    """Loads weights into a model, whose tied tensors are stored once; a sharded one takes its share.

    Raises:
        ValueError: if names do not fit the model.
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
