"""One training run, from a recipe to a folder with everything in it."""

from __future__ import annotations

import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import datasets
import torch.distributed
import yaml
from transformers import TrainerState, set_seed
from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import logging

from csan_hf.data import TokenizerPair, load_translation_dataset, tokenize_dataset
from csan_hf.evaluation import write_text
from csan_hf.pervasive_attention import PervasiveAttentionPreTrainedModel

from .arguments import TranslationTrainingArguments
from .build import build_model, build_tokenizers
from .callbacks import evaluations_without_gain
from .checkpoints import last_complete_checkpoint, list_checkpoints, load_weights, read_weights
from .families import get_family
from .finish import finish_run
from .options import RecipeError
from .recipe import Recipe
from .trainer import TranslationTrainer

# What makes two runs the same experiment; the rest may change when a run is resumed.
_FIXED = ("model", "init_from", "config", "data", "tokenizer")
_RUN_FILES = (
    "recipe.yaml",
    "results.json",
    "training.png",
    "locality.png",
    "README.md",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "training_args.bin",
)
_RUN_FOLDERS = ("runs", "hypotheses", "target_tokenizer")


def train_from_recipe(recipe: Recipe) -> dict[str, Any]:
    """Trains, scores and saves what a recipe describes; resumes if its folder holds an interrupted run.

    Args:
        recipe: the recipe; ``output_dir`` must be set.

    Returns:
        What ``results.json`` holds.

    Raises:
        RecipeError: if the recipe cannot be run, or if its folder holds another experiment.
    """
    args = recipe.training_arguments()
    _quieten()
    warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*optimizer.step.*")
    output = Path(args.output_dir)
    with args.main_process_first(desc="preparing the output folder"):
        checkpoint = _prepare_folder(recipe, args, output)
    set_seed(args.seed)
    data_arguments = recipe.data_arguments()
    try:
        splits, loaded = load_translation_dataset(data_arguments)
    except ValueError as error:
        raise RecipeError(f"The data cannot be used: {error}") from error
    if "train" not in splits:
        raise RecipeError(f"The data cannot be used: there is no split train, only {', '.join(splits)}.")
    if args.eval_strategy != "no" and "validation" not in splits:
        raise RecipeError("There is no validation data: set data.validation, or training.eval_strategy to 'no'.")
    with args.main_process_first(desc="training the tokenizers"):
        tokenizers = _get_tokenizers(recipe, args, splits, output)
    try:
        tokenized, filtered = tokenize_dataset(splits, tokenizers, data_arguments)
    except ValueError as error:
        raise RecipeError(f"The data cannot be used: {error}") from error
    _say(args, str(loaded.merge(filtered)))
    set_seed(args.seed)
    model = build_model(recipe, tokenizers)
    if args.world_size > 1 and isinstance(model, PervasiveAttentionPreTrainedModel):
        model.synchronize_batch_norm(torch.distributed.group.WORLD)
    _say(args, _describe(model, tokenizers, tokenized, args))
    trainer = TranslationTrainer(
        model,
        args,
        tokenizers=tokenizers,
        train_dataset=tokenized["train"],
        eval_dataset=tokenized.get("validation") if args.eval_strategy != "no" else None,
        bleu_tokenize=recipe.bleu_tokenize,
        batch_cost=get_family(recipe.model).batch_cost,
    )
    if checkpoint is not None and _is_finished(args, state := _read_state(checkpoint)):
        _say(args, f"Training had ended at update {state.global_step}: only the end of the run is repeated.")
        trainer.state = state
        load_weights(model, read_weights(checkpoint))
    else:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return finish_run(trainer, recipe, tokenized)


def _read_state(checkpoint: Path) -> TrainerState:
    return TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))


def _is_finished(args: TranslationTrainingArguments, state: TrainerState) -> bool:
    """Says whether nothing is left to train; the Trainer itself would do one update too many."""
    patience = args.early_stopping_patience
    stopped = patience is not None and evaluations_without_gain(args, state) >= patience
    return stopped or 0 < args.max_steps <= state.global_step


def _quieten() -> None:
    """Leaves the screen to our own progress."""
    logging.set_verbosity_warning()
    logging.disable_progress_bar()  # one for each file that a checkpoint consists of
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()


def _say(args: TranslationTrainingArguments, text: str) -> None:
    if args.process_index == 0:
        print(text, file=sys.stderr, flush=True)


def _prepare_folder(recipe: Recipe, args: TranslationTrainingArguments, output: Path) -> Path | None:
    """Decides between a fresh start and a resumption; the first process clears and writes."""
    first = args.process_index == 0
    if recipe.overwrite or not recipe.resume:
        if first:
            _clear(output)
        checkpoint = None
    else:
        _check_same_experiment(recipe, output)
        checkpoint = last_complete_checkpoint(output)
        if first:
            _drop_unfinished(output, checkpoint)
    if checkpoint is not None:
        _say(args, f"Resuming from {checkpoint} (--overwrite starts anew).")
    elif first:
        _say(args, f"Starting a new run in {output}.")
    if first:
        output.mkdir(parents=True, exist_ok=True)
        write_text(output / "recipe.yaml", recipe.to_yaml())
    return checkpoint


def _check_same_experiment(recipe: Recipe, output: Path) -> None:
    saved = output / "recipe.yaml"
    if not saved.is_file() or not list_checkpoints(output):
        return
    old: dict[str, Any] = yaml.safe_load(saved.read_text(encoding="utf-8")) or {}
    new = yaml.safe_load(recipe.to_yaml()) or {}
    different = [key for key in _FIXED if old.get(key) != new.get(key)]
    if different:
        changes = "; ".join(f"{key}: {old.get(key)} there, {new.get(key)} here" for key in different)
        raise RecipeError(
            f"{output} holds a run of another experiment ({changes}). "
            "Choose another --output_dir, or --overwrite to delete it."
        )


def _clear(output: Path) -> None:
    """Deletes what a run writes, and nothing else that may be in the folder."""
    for folder in [*list_checkpoints(output), *(output / name for name in _RUN_FOLDERS)]:
        shutil.rmtree(folder, ignore_errors=True)
    for name in _RUN_FILES:
        (output / name).unlink(missing_ok=True)


def _drop_unfinished(output: Path, checkpoint: Path | None) -> None:
    """Deletes checkpoints later than the one to resume from: an interruption left them half written."""
    checkpoints = list_checkpoints(output)
    later = checkpoints[checkpoints.index(checkpoint) + 1 :] if checkpoint else checkpoints
    for path in later:
        shutil.rmtree(path, ignore_errors=True)


def _get_tokenizers(recipe: Recipe, args: TranslationTrainingArguments, splits: Any, output: Path) -> TokenizerPair:
    """Reads the tokenizers of the run in ``output``, or makes them (first process) for it."""
    resumed = bool(list_checkpoints(output)) and (output / "tokenizer_config.json").is_file()
    if resumed or (args.process_index > 0 and (output / "tokenizer_config.json").is_file()):
        return TokenizerPair.from_pretrained(str(output))
    tokenizers = build_tokenizers(recipe, splits)
    tokenizers.save_pretrained(str(output))
    return tokenizers


def _describe(model: Any, tokenizers: TokenizerPair, tokenized: Any, args: TranslationTrainingArguments) -> str:
    parameters = sum(parameter.numel() for parameter in model.parameters())
    vocabulary = f"{len(tokenizers.source):,}"
    if not tokenizers.is_joint:
        vocabulary += f" + {len(tokenizers.target):,}"
    sizes = ", ".join(f"{name} {len(split):,}" for name, split in tokenized.items())
    return (
        f"{type(model).__name__}: {parameters:,} parameters, vocabulary {vocabulary}. Sentences: {sizes}. "
        f"Device {args.device}, {'bf16' if args.bf16 else 'float32'}."
    )
