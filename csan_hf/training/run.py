# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""One training run, from a recipe to a folder with everything in it."""

import contextlib
import importlib.metadata
import math
import platform
import re
import statistics
import sys
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import datasets
import torch
from datasets import Dataset, DatasetDict
from torch import Tensor
from transformers import PreTrainedModel, set_seed
from transformers.utils import logging

import csan_hf
from csan_hf.data import PreparedCorpus, TokenizerPair, TokenStream
from csan_hf.data.corpora import unlabelled_sources, without_known_sources
from csan_hf.data.documents import document_lines
from csan_hf.data.prepared import cache_folder
from csan_hf.evaluation.launched import on_main_process
from csan_hf.evaluation.scores import score_lines, score_table
from csan_hf.hub import push_checkpoint, save_self_contained, write_model_card
from csan_hf_runtime.text_files import digest_of_lines, path_inside, write_json, write_lines

from .arguments import TranslationTrainingArguments
from .callbacks import draw_training
from .checkpoints import (
    average_weights,
    checkpoint_step,
    find_fault,
    load_weights,
    rank_checkpoints,
    read_facts,
    read_weights,
    scores_by_step,
)
from .errors import RecipeError, notify, refusing
from .output_folder import begin_run, check_output_folder, choose_checkpoint, lock_folder
from .plan import Plan, rehearse_logging, resolve
from .recipe import Recipe
from .stopping import StopSignals
from .teachers import Teacher, check_teachers, teach
from .trainer import TranslationTrainer
from .unlabelled import Unlabelled


def train_from_recipe(recipe: Recipe) -> dict[str, Any]:
    """Trains, scores and saves what a recipe describes; resumes if its folder holds an interrupted
    run.

    Args:
        recipe: The recipe; `output_dir` must be set.

    Returns:
        What `results.json` holds.

    Raises:
        RecipeError: If the recipe cannot be run, or if its folder holds another experiment or only
            damaged checkpoints, or is in use by another run.
        RunError: If training met a loss that is not finite, or a checkpoint could not be saved.
        RunInterrupted: If a signal ended the run, after saving.
    """
    plan = resolve(recipe)
    args = plan.arguments
    rehearse_logging(args)
    output = Path(args.output_dir)
    with StopSignals(output) as signals, contextlib.ExitStack() as stack:
        on_main_process(lambda: stack.enter_context(lock_folder(output)))
        _quieten(args)
        set_seed(args.seed)
        checkpoint = on_main_process(lambda: _find_checkpoint(plan.recipe, output))
        if checkpoint is None:  # a resumed run may do without
            check_teachers(args.teachers or [])
        corpus = _prepare_corpus(plan, checkpoint)
        unlabelled = _further_sources(plan, corpus)
        training_set, teachers = _choose_training_set(plan, corpus, checkpoint, unlabelled)
        on_main_process(lambda: _begin(plan, corpus, output, is_new=checkpoint is None))
        set_seed(args.seed)  # the same weights whether the corpus was prepared now or earlier
        model = plan.build_model(corpus)
        notify(_describe_run(model, corpus, args))
        with refusing("The section training is refused"):
            trainer = TranslationTrainer(
                model,
                args,
                tokenizers=corpus.tokenizers,
                train_dataset=training_set,
                eval_dataset=None if args.eval_strategy == "no" else corpus.splits["validation"],
                bleu_tokenize=plan.recipe.bleu_tokenize,
                teachers=teachers,
            )
        trainer.guard.signals = signals
        signals.raise_if_received()
        if checkpoint is None:
            trainer.train()
        else:
            trainer.resume(checkpoint)
        signals.raise_if_received()
        return finish_run(trainer, plan.recipe, corpus.splits, signals, unlabelled)


def _describe_run(
    model: PreTrainedModel, corpus: PreparedCorpus, args: TranslationTrainingArguments
) -> str:
    tokenizers = corpus.tokenizers
    vocabulary = f"{len(tokenizers.source):,}"
    if not tokenizers.is_joint:
        vocabulary += f" + {len(tokenizers.target):,}"
    sizes = ", ".join(f"{name} {len(split):,}" for name, split in corpus.splits.items())
    return (
        f"{type(model).__name__}: {model.num_parameters():,} parameters, vocabulary {vocabulary}. "
        f"Sentences: {sizes}. Device {args.device}, {args.precision}."
    )


def _quieten(args: TranslationTrainingArguments) -> None:
    """Silences the libraries' progress bars and messages; those of the main process are ours."""
    warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*optimizer.step.*")
    logging.set_verbosity(logging.WARNING if args.process_index == 0 else logging.ERROR)
    logging.disable_progress_bar()  # there would be one for each file of a checkpoint
    if args.process_index > 0 or not sys.stderr.isatty():
        datasets.disable_progress_bars()
    if args.process_index > 0:
        warnings.simplefilter("ignore")


def _find_checkpoint(recipe: Recipe, output: Path) -> Path | None:
    """Returns the checkpoint to resume from; None: a new run."""
    check_output_folder(recipe, output)
    return choose_checkpoint(output) if recipe.resume and not recipe.overwrite else None


def _prepare_corpus(plan: Plan, checkpoint: Path | None) -> PreparedCorpus:
    """Prepares the corpus, which must have the splits that the run needs, with the tokenizers of
    the checkpoint to resume from, if any: the writing of the run's own may have been interrupted.
    """
    tokenizers = None
    if checkpoint is not None:
        tokenizers = TokenizerPair.from_pretrained(str(checkpoint))
    if plan.arguments.local_process_index > 0:
        time.sleep(1)  # the first process of a node shows the progress
    corpus = plan.prepare_corpus(tokenizers)
    required = ("train",) if plan.arguments.eval_strategy == "no" else ("train", "validation")
    missing = [name for name in required if name not in corpus.splits]
    if missing:
        raise RecipeError(
            f"The data cannot be used: there is no split {missing[0]}, only "
            f"{', '.join(corpus.splits)}. Set data.{missing[0]}, or with a training set alone "
            "--validation_size N, or --eval_strategy no."
        )
    return corpus


def _further_sources(plan: Plan, corpus: PreparedCorpus) -> Unlabelled | None:
    """Reads the sources without translations that the corpus does not have, if there are any."""
    if not plan.data.unlabelled:
        return None
    with refusing("The data cannot be used"):
        sources = unlabelled_sources(plan.data)
    new_sources = without_known_sources(sources, corpus.splits)
    notify(
        f"data.unlabelled: {len(new_sources):,} of {len(sources):,} sources; the others stand in "
        "the corpus."
    )
    return Unlabelled(new_sources, plan.data)


def _choose_training_set(
    plan: Plan, corpus: PreparedCorpus, checkpoint: Path | None, unlabelled: Unlabelled | None
) -> tuple[Dataset | TokenStream, list[Teacher]]:
    """Returns the training pairs, with what teachers say of them, and the teachers; those of the
    checkpoint to resume from, if any.
    """
    pairs = corpus.splits["train"]
    args = plan.arguments
    if plan.data.is_endless:
        return TokenStream(plan.data, corpus.tokenizers, sample=pairs), []
    if not args.teachers:
        return pairs, []
    teachers = None if checkpoint is None else read_facts(checkpoint)["teachers"]
    cache = cache_folder(plan.data.cache_dir)
    return teach(
        pairs, args, corpus.tokenizers, cache=cache, teachers=teachers, unlabelled=unlabelled
    )


def _begin(plan: Plan, corpus: PreparedCorpus, output: Path, *, is_new: bool) -> None:
    """Deletes an earlier run that is to be overwritten, and writes recipe and tokenizers."""
    if is_new:
        notify(f"Starting a new run in {output}.")
    begin_run(plan.recipe, output)
    corpus.tokenizers.save_pretrained(str(output))
    notify(corpus.report)


# ---- the end


def _is_near_best(loss: float, best_loss: float) -> bool:
    """Whether a validation loss is near enough to the best checkpoint's for an average."""
    return loss <= 1.1 * best_loss


def choose_weights(trainer: TranslationTrainer, validation: Dataset | None) -> dict[str, Any]:
    """Leaves the better of the best checkpoint and the average of the best ones in `trainer.model`.

    Both are compared on the tokenized validation set, translated as during training; None keeps the
    last weights.

    Returns:
        `weights`, a sentence that says what was chosen; `steps`, its updates; and the scores
        compared.
    """
    args = trainer.args
    state = trainer.state
    metric = args.metric_for_best_model
    last = {"weights": f"the last update ({state.global_step})", "steps": [state.global_step]}
    if validation is None or metric is None or not args.load_best_model_at_end:
        return last
    if trainer.is_deepspeed_enabled:
        # No process has all weights; the Trainer has loaded the best checkpoint
        return {
            "weights": f"the best checkpoint (step {state.best_global_step})",
            "steps": [state.best_global_step],
        }
    checkpoints = on_main_process(lambda: _best_checkpoints(trainer))
    if not checkpoints:
        return last

    def load(weights: dict[str, Tensor]) -> None:
        load_weights(trainer.model, weights)
        trainer.refresh_batch_statistics()

    steps = [checkpoint_step(path) for path in checkpoints]
    best_score = scores_by_step(state.log_history, metric)[steps[0]]
    chosen: dict[str, Any] = {
        "weights": f"the best checkpoint (step {steps[0]})",
        "steps": steps[:1],
        "metric": metric,
        "best_checkpoint_score": best_score,
    }
    if args.average_best and len(checkpoints) > 1:
        load(average_weights(checkpoints))
        _, metrics = trainer.translate_dataset(validation, num_beams=args.generation_num_beams)
        score = float(metrics[metric.removeprefix("eval_")])
        chosen["average_score"] = score
        gain = score - best_score if args.greater_is_better else best_score - score
        loss = float(metrics["loss"])
        best_loss = scores_by_step(state.log_history, "loss").get(steps[0], math.inf)
        is_better = gain > 0 or (gain == 0 and loss <= best_loss)
        if is_better and _is_near_best(loss, best_loss):
            chosen["weights"] = f"the average of {len(checkpoints)} checkpoints"
            chosen["steps"] = sorted(steps)
            return chosen
    load(read_weights(checkpoints[0]))
    return chosen


def _best_checkpoints(trainer: TranslationTrainer) -> list[Path]:
    """Lists the best checkpoints, without those far from the best one, which would spoil the
    average.
    """
    ranked = rank_checkpoints(trainer.args, trainer.state)
    readable = [path for path in ranked if find_fault(path, to_resume=False) is None]
    if not readable:
        return []
    losses = scores_by_step(trainer.state.log_history, "loss")
    best_loss = losses.get(checkpoint_step(readable[0]), math.inf)
    return [
        path
        for path in readable[: trainer.args.keep_best]
        if _is_near_best(losses.get(checkpoint_step(path), 0.0), best_loss)
    ]


def finish_run(
    trainer: TranslationTrainer,
    recipe: Recipe,
    tokenized: DatasetDict,
    signals: StopSignals,
    unlabelled: Unlabelled | None = None,
) -> dict[str, Any]:
    """Chooses the weights, scores every held-out split, writes the folder, and returns the content
    of `results.json`.
    """
    output = Path(trainer.args.output_dir)
    # So that repeating only the end of a run gives the same
    set_seed(trainer.args.seed)
    chosen = choose_weights(trainer, tokenized.get("validation"))
    signals.raise_if_received()
    held_out = {name: split for name, split in tokenized.items() if name != "train"}
    documents = recipe.data_arguments().documents
    scores: dict[str, Any] = {}
    references = {}
    for name, split in held_out.items():
        scores[name] = _score_split(trainer, name, split, documents=documents)
        targets = split["target"]
        if documents:
            targets = document_lines(targets, targets)
        references[name] = digest_of_lines(targets)
        signals.raise_if_received()
    results = {
        "model": trainer.family.model_class.__name__,
        "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
        "chosen": chosen,
        "scores": scores,
        "training": _summarise_training(trainer),
        "data": {
            "training_set": trainer.describe_run()["training_set"],
            "references": references,
        },
        "environment": describe_environment(trainer.args.device),
    }
    if trainer.teachers:
        results["teachers"] = list(trainer.teachers)
    if unlabelled is not None:
        results["data"]["unlabelled"] = unlabelled.describe()
    if recipe.task == "text2text-generation":
        examples = tokenized.get("validation") or tokenized["train"]
        results["example"] = examples[0]["source"]
    _write_folder(trainer, recipe, results, output)
    if trainer.is_world_process_zero():
        signals.raise_if_received()
        if trainer.args.push_to_hub:
            push_checkpoint(
                output,
                str(trainer.hub_model_id),
                revision=trainer.args.hub_revision,
                private=trainer.args.hub_private_repo,
                commit_message="Trained model with scores and card",
                trust_remote_code=True,  # code that this process wrote
            )
        print(summary_table(results, output), flush=True)
    return results


def _summarise_training(trainer: TranslationTrainer) -> dict[str, Any]:
    """Returns time, length, speed and precision of the training."""
    history = trainer.state.log_history
    is_stream = isinstance(trainer.train_dataset, TokenStream)

    def median(unit: str) -> float | None:
        """The median of the log's entries, which an interruption leaves as it is."""
        values = [entry[unit] for entry in history if unit in entry]
        return statistics.median_high(values) if values else None

    return {
        "seconds": max((entry.get("elapsed_seconds", 0.0) for entry in history), default=0.0),
        "updates": trainer.state.global_step,
        # Of a stream the library counts its updates since the run was resumed
        "epochs": None if is_stream else round(trainer.state.epoch or 0.0, 3),
        "tokens_per_second": median("tokens_per_second"),
        "updates_per_second": median("updates_per_second"),
        "precision": trainer.args.precision,
        "seed": trainer.args.seed,
        "processes": trainer.args.world_size,
    }


def _write_folder(
    trainer: TranslationTrainer, recipe: Recipe, results: dict[str, Any], output: Path
) -> None:
    """Writes model, results, picture and card; every process returns to a complete folder."""
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        trainer.save_model(str(output), _internal_call=True)  # gathers the shards
    elif trainer.is_world_process_zero():
        model = trainer.accelerator.unwrap_model(trainer.model)
        save_self_contained(model, trainer.tokenizers, output)
    if trainer.is_world_process_zero():
        # A pickle; recipe.yaml says the same readably
        (output / "training_args.bin").unlink(missing_ok=True)
        write_json(output / "results.json", results)
        draw_training(trainer.state.log_history, output / "training.png", trainer.search)
        write_model_card(output, recipe.to_dict(), results)
    trainer.accelerator.wait_for_everyone()


def _score_split(
    trainer: TranslationTrainer, name: str, split: Dataset, *, documents: bool
) -> dict[str, Any]:
    """Translates a split, writes its hypotheses and returns its scores."""
    generation = trainer.model.generation_config
    start = time.time()
    hypotheses, scores = trainer.translate_dataset(split)
    seconds = time.time() - start
    lines: Iterable[str] = hypotheses
    if documents:
        lines = document_lines(hypotheses, split["target"])
        scores |= score_lines(
            hypotheses,
            split["target"],
            sources=split["source"],
            metrics=trainer.args.metrics,
            tokenize=trainer.bleu_tokenize,
        )
    if trainer.is_world_process_zero():
        file = path_inside(Path(trainer.args.output_dir), "hypotheses", f"{name}.txt")
        write_lines(file, lines)
    return scores | {
        "sentences": len(hypotheses),
        "num_beams": generation.num_beams,
        "length_penalty": generation.length_penalty,
        "seconds": round(seconds, 2),
        "sentences_per_second": round(len(hypotheses) / max(seconds, 1e-9), 2),
    }


def summary_table(results: dict[str, Any], output: Path | str) -> str:
    """Formats the results for people."""
    training = results["training"]
    lines = [
        "",
        *score_table(results["scores"]),
        "",
        f"{results['model']}, {results['parameters']:,} parameters; {training['updates']:,} "
        f"updates in {training['seconds'] / 60:.1f} minutes "
        f"({training['tokens_per_second'] or 0:,.0f} tokens/s).",
        f"Weights: {results['chosen']['weights']}.",
        f"Saved in {output}: model, tokenizer, card with pictures, recipe, results.json, "
        "hypotheses.",
    ]
    return "\n".join(lines)


def describe_environment(device: torch.device) -> dict[str, str | int]:
    """Returns the versions of the libraries that compute, what the device is, and how many of them
    there are, or how many threads.
    """
    packages = ("torch", "transformers", "tokenizers", "datasets", "accelerate", "sacrebleu")
    environment: dict[str, str | int] = {
        package: importlib.metadata.version(package) for package in packages
    }
    environment["python"] = platform.python_version()
    environment["csan_hf"] = csan_hf.__version__
    if device.type == "cuda":
        environment["device"] = torch.cuda.get_device_name()
        environment["devices"] = torch.cuda.device_count()
        return environment
    information = Path("/proc/cpuinfo")
    text = information.read_text(encoding="utf-8") if information.is_file() else ""
    processor = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    environment["device"] = processor[1] if processor else platform.machine()
    environment["threads"] = torch.get_num_threads()
    return environment
