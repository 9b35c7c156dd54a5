# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Resuming an interrupted run: from which checkpoint, and whether it is the same run at all."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .callbacks import evaluations_without_gain
from .checkpoints import SAVING, find_fault, list_checkpoints, read_facts
from .output_folder import DAMAGED
from .recipe import PRETRAINED, Recipe, RecipeError, load_recipe, recipe_options

if TYPE_CHECKING:
    from transformers import TrainerState

    from .trainer import TranslationTrainer

# Keys that may change when a run is resumed: what is shown, kept, uploaded or scored at the end, and how fast it goes.
# Every other key changes the weights that are trained.
_FREE = {
    "": r"output_dir|name|description|license|language|dataset_name|task|hub_dataset",
    "data": r"data_dir|test|test_size",  # what lies in a folder is compared token by token
    "training": r"""(?x) output_dir | log | report_to | run_name | project | trackio_ | disable_tqdm | debug
        | skip_memory | include_num_input | hub_ | push_ | eval_(?!strategy) | per_device_eval | early_stopping_
        | save_(?!strategy|only) | keep_best | average_best | batch_norm_batches | load_best_model | restore_callback
        | enable_jit | use_cpu | ddp_ | dataloader_(?!drop_last) | torch_empty_cache
        | (?:gradient|activation)_checkpointing""",
    "generation": "",  # concerns the final scores
}
# The length of a run may change where the learning rate does not depend on it.
_LENGTHS = ("max_steps", "num_train_epochs")
_ENDLESS_SCHEDULES = ("inverse_sqrt", "constant", "constant_with_warmup")


def choose_checkpoint(output: Path) -> Path | None:
    """Finds the newest checkpoint that can be used, prints which it is, and renames damaged ones to `_damaged-...`.

    Args:
        output: Folder of the run.

    Returns:
        The checkpoint, or None if there is none.

    Raises:
        RecipeError: If there are checkpoints but none can be used, or if there are none but the run had finished; then
            nothing is changed.
    """
    _clear_leftovers(output)
    checkpoints = list_checkpoints(output)
    faults: dict[Path, str] = {}
    chosen = None
    for path in reversed(checkpoints):
        fault = find_fault(path, to_resume=chosen is None)
        if fault is not None:
            faults[path] = fault
        elif chosen is None:
            chosen = path
    skipped = "; ".join(f"{path.name} ({fault})" for path, fault in faults.items())
    if chosen is None and faults:
        raise RecipeError(
            f"No checkpoint in {output} can be resumed from: {skipped}. "
            "Put a whole copy of one back, or start anew with --overwrite or another --output_dir."
        )
    if chosen is None and (output / "results.json").is_file():
        raise RecipeError(
            f"{output} holds a finished run without its checkpoints: it cannot be resumed. Choose another "
            "--output_dir, or --overwrite to delete the run and to train anew."
        )
    if chosen is None:
        _say(f"Starting a new run in {output}.")
    else:
        _say(f"Resuming from {chosen} ({f'skipped {skipped}; ' if skipped else ''}--overwrite starts anew).")
    for path in faults:
        target = path.with_name(f"{DAMAGED}{path.name}")
        shutil.rmtree(target, ignore_errors=True)
        path.rename(target)
    return chosen


def _clear_leftovers(output: Path) -> None:
    """Deletes the temporary files of a process that was killed."""
    uploads = f".{output.name}.????????"  # beside the folder; those of saves lie within it
    folders = (output / SAVING, *output.glob("_deleted-*"), *output.parent.glob(uploads), *output.glob(uploads))
    for path in folders:
        ours = re.fullmatch(r"_.+|\..+\.[a-z0-9_]{8}", path.name)
        if ours and path.is_dir() and (path.name[0] == "_" or os.listdir(path) in ([], ["checkpoint"])):
            shutil.rmtree(path, ignore_errors=True)
    for path in (*output.glob(".*"), *(output / "hypotheses").glob(".*")):
        if path.is_file() and re.fullmatch(r"\..+\.\d+", path.name):
            path.unlink()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ---- the same experiment


def check_same_experiment(recipe: Recipe, output: Path) -> None:
    """Compares a recipe with the one that the run in `output` began with, and prints which harmless keys changed.

    Values are compared, not the text: a key that is left out equals its default.

    Raises:
        RecipeError: If a key differs that changes the weights; the message has both values of each.
    """
    saved = output / "recipe.yaml"
    if not saved.is_file() or not list_checkpoints(output):
        return
    before, now = _values_of_file(saved, recipe), _values(recipe)
    changed = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
    fixed = [key for key in changed if not _may_change(key, now)]
    if "model" in fixed:  # all fields of its config differ with it
        fixed = [key for key in fixed if not key.startswith("config.")]
    if fixed:
        changes = "; ".join(f"{key}: {before.get(key)} there, {now.get(key)} here" for key in fixed)
        raise RecipeError(
            f"{output} holds a run of another experiment ({changes}). Go on with the old value, "
            "or choose another --output_dir, or --overwrite to delete it."
        )
    if changed:
        changes = "; ".join(f"{key} from {before.get(key)} to {now.get(key)}" for key in changed)
        _say(f"Changed since the run began: {changes}.")


def _values_of_file(path: Path, recipe: Recipe) -> dict[str, Any]:
    try:
        old = load_recipe(path)
        old.output_dir = recipe.output_dir
        return _values(old)
    except RecipeError as error:  # a key that this version no longer has
        raise RecipeError(
            f"{path} is of a run that this version of csan_hf cannot resume ({error}). "
            "Choose another --output_dir, or --overwrite to delete it."
        ) from error


def _values(recipe: Recipe) -> dict[str, Any]:
    """Returns every key that has a value, those left out with their defaults."""
    values: dict[str, Any] = {
        field.name: getattr(recipe, field.name)
        for field in dataclasses.fields(Recipe)
        if isinstance(getattr(recipe, field.name), str | list | None)
    }
    defaults = {option.path: option.default for option in recipe_options(recipe.model)}
    has_tokenizer = recipe.init_from is not None or PRETRAINED in recipe.tokenizer
    sections = {
        "config": recipe.config,
        "data": dataclasses.asdict(recipe.data_arguments()),
        "tokenizer": recipe.tokenizer,
        "training": recipe.training_arguments().to_dict(),
        "generation": recipe.generation,
    }
    for section, given in sections.items():
        if {"config": not recipe.init_from, "tokenizer": not has_tokenizer}.get(section):
            values |= {key: value for key, value in defaults.items() if key.startswith(f"{section}.")}
        values |= {f"{section}.{name}": _plain(value) for name, value in given.items()}
    return {key: value for key, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else getattr(value, "value", value)


def _may_change(key: str, values: dict[str, Any]) -> bool:
    section, _, name = key.rpartition(".")
    if section == "training" and name in _LENGTHS:
        warmup = values.get("training.warmup_steps", 0)
        return values.get("training.lr_scheduler_type") in _ENDLESS_SCHEDULES and not 0 < warmup < 1
    if section not in _FREE:
        return False
    # A key of the training arguments may be one of a group that begins alike
    find = re.match if section in ("training", "generation") else re.fullmatch
    return find(_FREE[section], name) is not None


def check_same_data(checkpoint: Path, trainer: TranslationTrainer) -> None:
    """Compares the training and validation sets with those that a checkpoint was trained on, token by token.

    Another number of processes is allowed, with a notice: from there on the batches differ.

    Raises:
        RecipeError: If they differ, for example because a file has changed.
    """
    saved = read_facts(checkpoint)
    now = trainer.describe_run()
    for key, name in (("training_set", "training"), ("validation_set", "validation")):
        before, here = saved.get(key), now[key]
        # A checkpoint of an older version may lack a set
        if before and here and any(before[fact] != here[fact] for fact in before.keys() & here.keys()):
            raise RecipeError(
                f"The {name} data is not what {checkpoint} was trained with: {before['pairs']:,} pairs then, "
                f"{here['pairs']:,} now, of other content. Restore the files, "
                "or choose another --output_dir, or --overwrite to delete the run."
            )
    processes = saved.get("processes", now["processes"])
    if processes != now["processes"] and trainer.is_world_process_zero():
        _say(
            f"{checkpoint} was saved by {processes} processes, now there are {now['processes']}: "
            "the batches from here on differ from those of the run before."
        )


# ---- the end


def is_finished(trainer: TranslationTrainer, state: TrainerState) -> bool:
    """Says whether nothing is left to train from a checkpoint's state on; the Trainer would do one update too many."""
    args = trainer.args
    patience = args.early_stopping_patience
    if patience is not None and evaluations_without_gain(args, state) >= patience:
        return True
    if args.max_steps > 0:
        return state.global_step >= args.max_steps
    # The run may have ended with another number of processes, and so with another number of updates per epoch
    reached_its_end = 0 < state.max_steps <= state.global_step and (state.epoch or 0.0) >= args.num_train_epochs
    return reached_its_end or state.global_step >= trainer.count_updates()
