# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The end of a run: choose the weights, score them, save and report."""

from __future__ import annotations

import importlib.metadata
import math
import platform
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, DatasetDict
from transformers import set_seed

from csan_hf.evaluation import score_translations
from csan_hf.evaluation.metrics import metrics_in
from csan_hf.hub import push_checkpoint, save_self_contained, write_model_card
from csan_hf.text_files import digest_of_lines, path_inside, write_json, write_lines, write_text

from .checkpoints import (
    average_weights,
    checkpoint_step,
    find_fault,
    list_checkpoints,
    load_weights,
    rank_checkpoints,
    read_weights,
    scores_by_step,
)
from .picture import draw_training
from .recipe import Recipe
from .stopping import PREPARED_DATA, on_main_process
from .trainer import TranslationTrainer, plain_class

# A validation loss above this times the best checkpoint's is far from it
_FAR = 1.1


def choose_weights(trainer: TranslationTrainer, validation: Dataset | None) -> dict[str, Any]:
    """Leaves the better of the best checkpoint and the average of the best ones in `trainer.model`.

    Both are compared on the validation set, translated as during training.

    Args:
        trainer: After training.
        validation: Tokenized validation set; None keeps the last weights.

    Returns:
        `weights`, a sentence that says what was chosen; `steps`, its updates; and the scores compared.
    """
    args, state = trainer.args, trainer.state
    metric = args.metric_for_best_model
    last = {"weights": f"the last update ({state.global_step})", "steps": [state.global_step]}
    if validation is None or metric is None:
        return last
    if trainer.is_deepspeed_enabled:  # no process has all weights; the Trainer has loaded the best checkpoint
        return {"weights": f"the best checkpoint (step {state.best_global_step})", "steps": [state.best_global_step]}
    greater = bool(args.greater_is_better)
    scores = scores_by_step(state.log_history, metric)
    losses = scores_by_step(state.log_history, "loss")
    ranked = on_main_process(
        args,
        lambda: rank_checkpoints(
            _list_whole_checkpoints(args.output_dir), scores, greater_is_better=greater, losses=losses
        )[: args.keep_best],
    )
    # What is far from the best one would spoil the average, whatever its score
    worst = _FAR * losses.get(checkpoint_step(ranked[0]), math.inf) if ranked else math.inf
    best = [path for path in ranked if losses.get(checkpoint_step(path), 0.0) <= worst]
    if not best:
        return last
    best_step = checkpoint_step(best[0])
    single = {
        "weights": f"the best checkpoint (step {best_step})",
        "steps": [best_step],
        "metric": metric,
        "best_checkpoint_score": scores[best_step],
    }
    if not args.average_best or len(best) < 2:
        load_weights(trainer.model, read_weights(best[0]))
        trainer.refresh_batch_statistics()
        return single
    load_weights(trainer.model, average_weights(best))
    trainer.refresh_batch_statistics()
    _, metrics = trainer.translate_dataset(validation, num_beams=args.generation_num_beams)
    score = float(metrics[metric.removeprefix("eval_")])
    single["average_score"] = score
    steps = sorted(checkpoint_step(path) for path in best)
    gain = score - scores[best_step] if greater else scores[best_step] - score
    loss, best_loss = float(metrics["loss"]), losses.get(best_step, math.inf)
    if loss <= _FAR * best_loss and (gain > 0 or (gain == 0 and loss <= best_loss)):
        return {**single, "weights": f"the average of {len(best)} checkpoints", "steps": steps}
    load_weights(trainer.model, read_weights(best[0]))
    trainer.refresh_batch_statistics()
    return single


def _list_whole_checkpoints(output_dir: str) -> list[Path]:
    """Lists the checkpoints whose weights are all there, and says which are not."""
    whole = []
    for path in list_checkpoints(output_dir):
        fault = find_fault(path, to_resume=False)
        if fault is None:
            whole.append(path)
        else:
            print(f"{path.name} is left out of the choice of weights: {fault}.", file=sys.stderr, flush=True)
    return whole


def finish_run(trainer: TranslationTrainer, recipe: Recipe, tokenized: DatasetDict) -> dict[str, Any]:
    """Chooses the weights, scores every held-out split, and writes the folder.

    Returns:
        What `results.json` holds.
    """
    output = Path(trainer.args.output_dir)
    set_seed(trainer.args.seed)  # whatever is random from here on is the same when only the end of a run is repeated
    chosen = choose_weights(trainer, tokenized.get("validation"))
    _stop_at_signal(trainer)
    scores: dict[str, Any] = {}
    for name, split in tokenized.items():
        if name != "train":
            scores[name], hypotheses = _score_split(trainer, split, recipe.bleu_tokenize)
            if trainer.is_world_process_zero():
                write_lines(path_inside(output, "hypotheses", f"{name}.txt"), hypotheses)
            _stop_at_signal(trainer)
    results = {
        "model": plain_class(trainer.model).__name__,
        "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
        "chosen": chosen,
        "scores": scores,
        "training": _training_facts(trainer),
        "data": {
            "training_set": trainer.describe_run()["training_set"],
            "references": {
                name: digest_of_lines(split["target"]) for name, split in tokenized.items() if name != "train"
            },
        },
        "environment": describe_environment(),
    }
    if recipe.task == "text2text-generation":
        results["example"] = next(iter(tokenized.get("validation") or tokenized["train"]))["source"]
    _save_model(trainer, output)
    if trainer.is_world_process_zero():
        write_json(output / "results.json", results)
        write_text(output / "recipe.yaml", recipe.to_yaml())
        draw_training(trainer.state.log_history, output / "training.png")
        write_model_card(output, recipe.to_dict(), results)
    trainer.accelerator.wait_for_everyone()  # so that every process returns to a complete folder
    if trainer.is_world_process_zero():
        shutil.rmtree(output / PREPARED_DATA, ignore_errors=True)
        _stop_at_signal(trainer)
        _push(trainer, output)
        print(summary_table(results, output), flush=True)
    return results


def _stop_at_signal(trainer: TranslationTrainer) -> None:
    """Ends the run if a signal came whose exception a library caught."""
    if trainer.guard.signals is not None:
        trainer.guard.signals.raise_if_received()


def _save_model(trainer: TranslationTrainer, output: Path) -> None:
    """Saves weights, tokenizers and code, so that the folder loads where csan_hf is not installed."""
    if _is_sharded(trainer):
        trainer.save_model(str(output), _internal_call=True)  # gathers the shards
    elif trainer.is_world_process_zero():
        save_self_contained(trainer.accelerator.unwrap_model(trainer.model), trainer.tokenizers, output)
    if trainer.is_world_process_zero():
        (output / "training_args.bin").unlink(missing_ok=True)  # a pickle; recipe.yaml says the same readably


def _is_sharded(trainer: TranslationTrainer) -> bool:
    return bool(trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled)


def _push(trainer: TranslationTrainer, output: Path) -> None:
    """Uploads the finished folder, where the recipe says so."""
    if not trainer.args.push_to_hub:
        return
    trainer._finish_current_push()
    push_checkpoint(
        output,
        str(trainer.hub_model_id),
        revision=trainer.args.hub_revision,
        private=trainer.args.hub_private_repo,
        commit_message="Trained model with scores and card",
    )


def _score_split(
    trainer: TranslationTrainer, split: Dataset, bleu_tokenize: str | None
) -> tuple[dict[str, Any], list[str]]:
    start = time.time()
    hypotheses, metrics = trainer.translate_dataset(split)
    seconds = time.time() - start
    references = list(split["target"])
    config = trainer.model.generation_config
    return {
        **score_translations(
            hypotheses,
            references,
            sources=list(split["source"]) if "source" in split.column_names else None,
            metrics=trainer.args.metrics,
            tokenize=bleu_tokenize,
        ),
        "loss": metrics.get("loss"),
        "sentences": len(references),
        "num_beams": config.num_beams,
        "length_penalty": config.length_penalty,
        "seconds": round(seconds, 2),
        "sentences_per_second": round(len(references) / max(seconds, 1e-9), 2),
    }, hypotheses


def _training_facts(trainer: TranslationTrainer) -> dict[str, Any]:
    history, args = trainer.state.log_history, trainer.args
    return {
        "seconds": max((entry.get("elapsed_seconds", 0.0) for entry in history), default=0.0),
        "updates": trainer.state.global_step,
        "epochs": round(trainer.state.epoch or 0.0, 3),
        "tokens_per_second": _median(history, "tokens_per_second"),
        "updates_per_second": _median(history, "updates_per_second"),
        "precision": "bf16" if args.bf16 else "fp16" if args.fp16 else "float32",
        "seed": args.seed,
        "processes": args.world_size,
    }


def _median(history: list[dict[str, Any]], key: str) -> float | None:
    """Returns the (upper) median of what the log says of a speed; an interruption leaves it as it is."""
    values = sorted(entry[key] for entry in history if key in entry)
    return values[len(values) // 2] if values else None


def summary_table(results: dict[str, Any], output: Path | str) -> str:
    """Formats the results for people."""
    metrics = list(metrics_in(key for entry in results["scores"].values() for key in entry))
    rows: list[tuple[str, ...]] = [("split", "sentences", *(metric.label for metric in metrics), "loss")]
    for name, entry in results["scores"].items():
        loss = "" if entry.get("loss") is None else f"{entry['loss']:.3f}"
        scores = (f"{entry[metric.name]:.{metric.decimals}f}" for metric in metrics)
        rows.append((name, f"{entry['sentences']:,}", *scores, loss))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    rows.insert(1, tuple("-" * width for width in widths))
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells]))
    training = results["training"]
    first: dict[str, Any] = next(iter(results["scores"].values()), {})
    signatures = ((metric.label, first.get(f"{metric.name}_signature")) for metric in metrics)
    return "\n".join(
        [
            "",
            *lines,
            "",
            f"{results['model']}, {results['parameters']:,} parameters; {training['updates']:,} updates in "
            f"{training['seconds'] / 60:.1f} minutes ({training['tokens_per_second'] or 0:,.0f} tokens/s).",
            f"Weights: {results['chosen']['weights']}.",
            *(f"{label}: {signature}" for label, signature in signatures if signature),
            f"Saved in {output}: model, tokenizer, card with pictures, recipe, results.json, hypotheses.",
        ]
    )


# ---- what a result was measured with

_PACKAGES = ("torch", "transformers", "tokenizers", "datasets", "accelerate", "sacrebleu", "csan_hf")


def describe_environment() -> dict[str, str | int]:
    """Returns the versions of what computes, the device and the number of threads."""
    environment: dict[str, str | int] = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            environment[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            environment[package] = "not installed"
    if torch.cuda.is_available():
        environment["device"] = torch.cuda.get_device_name()
        environment["devices"] = torch.cuda.device_count()
    else:
        environment["device"] = _processor()
        environment["threads"] = torch.get_num_threads()
    return environment


def _processor() -> str:
    """Returns the processor's name where the system tells it, else its architecture."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text(encoding="utf-8").splitlines() if information.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(filter(None, names), None) or platform.processor() or platform.machine()
