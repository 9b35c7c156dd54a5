# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""One training run, from a recipe to a folder with everything in it."""

from __future__ import annotations

import contextlib
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import datasets
from datasets import DatasetDict
from transformers import TrainerState, set_seed
from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import logging

from csan_hf.data import TokenizerPair, load_translation_dataset, tokenize_dataset
from csan_hf.data.corpora import FilterReport
from csan_hf.text_files import write_text

from .arguments import TranslationTrainingArguments
from .checkpoints import list_checkpoints, load_weights, read_weights
from .finish import finish_run
from .output_folder import check_output_folder, delete_run, lock_folder, mark_run
from .plan import Plan, note_unused_tokenizer, resolve, set_languages
from .recipe import Recipe, RecipeError
from .resume import check_same_data, check_same_experiment, choose_checkpoint, is_finished
from .stopping import PREPARED_DATA, RunError, StopSignals, is_disk_full, on_main_process
from .trainer import TranslationTrainer


def train_from_recipe(recipe: Recipe) -> dict[str, Any]:
    """Trains, scores and saves what a recipe describes; resumes if its folder holds an interrupted run.

    Args:
        recipe: The recipe; `output_dir` must be set.

    Returns:
        What `results.json` holds.

    Raises:
        RecipeError: If the recipe cannot be run, or if its folder holds another experiment or only damaged
            checkpoints, or is in use by another run.
        RunError: If training met a loss that is not finite, or a full disk.
        RunInterrupted: If a signal ended the run, after saving.
    """
    plan = resolve(recipe)
    args = plan.arguments
    output = Path(args.output_dir)
    if note := note_unused_tokenizer(recipe):
        _say(args, note)
    with StopSignals(output) as signals, contextlib.ExitStack() as held:
        try:
            on_main_process(args, lambda: held.enter_context(lock_folder(output)))
            return _train(plan, output, signals)
        except Exception as error:
            if isinstance(error, RunError) or not is_disk_full(error):
                raise
            raise RunError(
                f"The disk is full: {error}. Make room, then start the same command again (without --overwrite): "
                f"it goes on from the last checkpoint in {output}."
            ) from error


def _train(plan: Plan, output: Path, signals: StopSignals) -> dict[str, Any]:
    args, recipe = plan.arguments, plan.recipe
    _quieten(args)
    warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*optimizer.step.*")
    set_seed(args.seed)
    checkpoint, tokenizers, tokenized = _prepare(plan, output)
    set_seed(args.seed)
    model = plan.build_model(tokenizers)
    _say(args, _describe(model, tokenizers, tokenized, args))
    trainer = TranslationTrainer(
        model,
        args,
        tokenizers=tokenizers,
        train_dataset=tokenized["train"],
        eval_dataset=tokenized.get("validation") if args.eval_strategy != "no" else None,
        bleu_tokenize=recipe.bleu_tokenize,
    )
    trainer.guard.signals = signals
    if checkpoint is not None:
        check_same_data(checkpoint, trainer)
    signals.raise_if_received()
    if checkpoint is not None and is_finished(trainer, state := _read_state(checkpoint)):
        signals.phase = "after"
        _say(args, f"Training had ended at update {state.global_step}: only the end of the run is repeated.")
        trainer.state = state
        state.is_world_process_zero = trainer.is_world_process_zero()  # the file was written by the main process
        state.is_local_process_zero = trainer.is_local_process_zero()
        load_weights(model, read_weights(checkpoint))
    else:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    signals.raise_if_received()
    return finish_run(trainer, recipe, tokenized)


def _read_state(checkpoint: Path) -> TrainerState:
    return TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))


def _quieten(args: TranslationTrainingArguments) -> None:
    """Silences the libraries' progress bars and messages in favour of our own in the main process."""
    logging.set_verbosity(logging.WARNING if args.process_index == 0 else logging.ERROR)
    logging.disable_progress_bar()  # there would be one for each file of a checkpoint
    if args.process_index > 0 or not sys.stderr.isatty():
        datasets.disable_progress_bars()
    if args.process_index > 0:
        warnings.simplefilter("ignore")


def _say(args: TranslationTrainingArguments, text: str) -> None:
    if args.process_index == 0:
        print(text, file=sys.stderr, flush=True)


def _prepare(plan: Plan, output: Path) -> tuple[Path | None, TokenizerPair, DatasetDict]:
    """Loads the corpus, decides between a new run and a resumption, and tokenizes; once for all processes.

    Returns:
        The checkpoint to resume from or None, the tokenizers and the tokenized corpus.

    Raises:
        RecipeError: If the corpus or the section tokenizer cannot be used, or if the folder is of something else.
    """
    folder = output / PREPARED_DATA

    def prepare() -> tuple[Path | None, TokenizerPair, DatasetDict]:
        check_output_folder(plan.recipe, output)
        anew = plan.recipe.overwrite or not plan.recipe.resume
        if not anew:
            check_same_experiment(plan.recipe, output)
        splits, loaded = _load(plan)
        checkpoint = None if anew else choose_checkpoint(output)
        tokenizers = plan.build_tokenizers(splits) if anew else _get_tokenizers(plan, splits, output)
        try:
            tokenized, filtered = tokenize_dataset(splits, tokenizers, plan.data)
        except ValueError as error:
            raise RecipeError(f"The data cannot be used: {error}") from error
        if anew:
            delete_run(output)
            _say(plan.arguments, f"Starting a new run in {output}.")
        mark_run(output)
        write_text(output / "recipe.yaml", plan.recipe.to_yaml())
        tokenizers.save_pretrained(str(output))
        _say(plan.arguments, str(loaded.merge(filtered)))
        return checkpoint, tokenizers, tokenized

    if plan.arguments.world_size == 1:
        return prepare()

    def prepare_for_all() -> Path | None:
        checkpoint, _, tokenized = prepare()
        shutil.rmtree(folder, ignore_errors=True)
        tokenized.save_to_disk(str(folder))
        return checkpoint

    checkpoint = on_main_process(plan.arguments, prepare_for_all)
    # Memory-mapped: the processes of a node share what they read.
    return checkpoint, TokenizerPair.from_pretrained(str(output)), DatasetDict.load_from_disk(str(folder))


def _load(plan: Plan) -> tuple[DatasetDict, FilterReport]:
    try:
        splits, loaded = load_translation_dataset(plan.data)
    except (ValueError, FileNotFoundError, ConnectionError) as error:  # the latter two: unknown, or out of reach
        raise RecipeError(f"The data cannot be used: {error}") from error
    if "train" not in splits:
        raise RecipeError(f"The data cannot be used: there is no split train, only {', '.join(splits)}.")
    if plan.arguments.eval_strategy != "no" and "validation" not in splits:
        raise RecipeError("There is no validation data: set data.validation, or training.eval_strategy to 'no'.")
    return splits, loaded


def _get_tokenizers(plan: Plan, splits: DatasetDict, output: Path) -> TokenizerPair:
    """Reads the tokenizers of the run in `output`, or makes new ones."""
    # Those of a checkpoint are whole; writing the run's own may have been interrupted.
    saved = [path for path in list_checkpoints(output) if (path / "tokenizer_config.json").is_file()]
    if not saved:
        return plan.build_tokenizers(splits)
    tokenizers = TokenizerPair.from_pretrained(str(saved[-1]))
    set_languages(tokenizers, plan.data)
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
