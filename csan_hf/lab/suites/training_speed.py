# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Speed of training of systems, measured in turn in one process, and the cost of a suite."""

import itertools
import math
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import datasets
import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.utils import logging

from csan_hf.training.dry_run import counted_flops
from csan_hf.training.errors import refusing
from csan_hf.training.plan import resolve
from csan_hf.training.recipe import Recipe
from csan_hf.training.teachers import blank_distributions
from csan_hf.training.trainer import TranslationTrainer

SPEEDS = "speeds.json"
"""File in a suite's folder with the speeds of training that were measured before it began."""
WARM_UP = 1
ROUNDS = 8
SECONDS = 60.0


@dataclass(frozen=True)
class Speed:
    """How fast a system trains: medians of an update's seconds and tokens, source and target
    without padding.

    `relative` is its tokens per second as a multiple of the first system's, the median over the
    rounds; `evaluation` and `scoring` are the seconds of one evaluation during training and of the
    final scores; `flops` are the floating-point operations for a target token, see
    `target_token_flops`."""

    parameters: int
    seconds: float
    tokens: float
    relative: float
    evaluation: float
    scoring: float
    flops: float | None = None

    def run_seconds(self, recipe: Recipe) -> float:
        """Seconds of a whole run."""
        args = recipe.training_arguments()
        interval = args.eval_steps or math.inf
        if interval < 1:  # a share of all updates
            interval = math.ceil(args.max_steps * interval)
        evaluations = 0 if args.eval_strategy == "no" else args.max_steps // interval
        return args.max_steps * self.seconds + evaluations * self.evaluation + self.scoring


def measure_speed(recipes: dict[str, Recipe]) -> dict[str, Speed]:
    """Times training updates of several systems in turn: one of each in every round, after an
    untimed one; at least 8 rounds and a minute, as small networks need many.

    So changes in the speed of the machine affect all systems alike, and no system pays for the
    memory and caches that the one before it left behind.

    Args:
        recipes: Name of a system -> its recipe, all on the same data.

    Raises:
        RecipeError: A recipe cannot be used.
    """
    verbosity = logging.get_verbosity()
    shows_bars = not datasets.are_progress_bars_disabled()
    logging.set_verbosity_error()
    datasets.disable_progress_bars()
    try:
        with tempfile.TemporaryDirectory() as folder:
            trainers, splits = _build_trainers(recipes, folder)
            updates = {name: _updates(trainer) for name, trainer in trainers.items()}
            taken = time_in_turn(updates, ROUNDS, SECONDS)
            first = next(iter(taken.values()))
            return {
                name: _speed(trainer, splits[name], taken=taken[name], first=first)
                for name, trainer in trainers.items()
            }
    finally:
        logging.set_verbosity(verbosity)
        if shows_bars:
            datasets.enable_progress_bars()


def _speed(
    trainer: TranslationTrainer,
    splits: dict[str, Any],
    *,
    taken: list[tuple[float, float]],
    first: list[tuple[float, float]],
) -> Speed:
    """A system's speed from the seconds and tokens of its updates and of the first system's."""
    seconds, tokens = np.transpose(taken)
    first_seconds, first_tokens = np.transpose(first)
    ratios = (tokens / seconds) / (first_tokens / first_seconds)
    measured = next(iter(splits.values()))
    lengths = [
        round(sum(map(len, measured[column])) / len(measured)) for column in ("input_ids", "labels")
    ]
    evaluation, scoring = _evaluation_seconds(trainer, splits)
    return Speed(
        parameters=trainer.model.num_parameters(),
        seconds=float(np.median(seconds)),
        tokens=float(np.median(tokens)),
        relative=float(np.median(ratios)),
        evaluation=evaluation,
        scoring=scoring,
        flops=target_token_flops(trainer.model, *lengths),
    )


def _build_trainers(
    recipes: dict[str, Recipe], folder: str
) -> tuple[dict[str, TranslationTrainer], dict[str, dict[str, Any]]]:
    """Returns a trainer of each system, and the splits that its runs translate."""
    trainers = {}
    held_out = {}
    for name, recipe in recipes.items():
        # Without anything that writes or reports
        silent = {**recipe.training, "report_to": "none", "push_to_hub": False}
        with refusing(name):
            plan = resolve(replace(recipe, output_dir=os.path.join(folder, name), training=silent))
            prepared = plan.prepare_corpus()
            model = plan.build_model(prepared)
        pairs = prepared.splits["train"]
        if plan.arguments.teachers:  # not trained yet
            pairs = pairs.map(
                blank_distributions,
                batched=True,
                keep_in_memory=True,
                fn_kwargs={"top_k": plan.arguments.teacher_top_k},
            )
        trainers[name] = TranslationTrainer(
            model,
            plan.arguments,
            tokenizers=prepared.tokenizers,
            train_dataset=pairs,
            eval_dataset=prepared.splits.get("validation"),
        )
        held_out[name] = {
            split: rows for split, rows in prepared.splits.items() if split != "train"
        }
    return trainers, held_out


def time_in_turn(
    steps: dict[str, Iterator[float]], rounds: int, seconds: float
) -> dict[str, list[tuple[float, float]]]:
    """Seconds and tokens of each system's update in each round, in an order that differs from round
    to round.
    """
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    names = list(steps)
    begin = time.perf_counter()
    for number in itertools.count():
        if number >= WARM_UP + rounds and time.perf_counter() - begin >= seconds:
            break
        shift = number // 2 % len(names)
        order = names[shift:] + names[:shift]
        for name in order if number % 2 else reversed(order):
            # Untimed: it pays for what the system before left in memory and caches
            next(steps[name])
            start = time.perf_counter()
            tokens = next(steps[name])
            taken[name].append((time.perf_counter() - start, tokens))
    return {name: updates[WARM_UP:] for name, updates in taken.items()}


def _updates(trainer: TranslationTrainer) -> Iterator[float]:
    """Makes updates without end, in the precision of training; yields the tokens of each."""
    args = trainer.args
    model: Any = trainer.accelerator.prepare_model(trainer.model)
    trainer.create_optimizer_and_scheduler(args.max_steps)
    optimizer: Any = trainer.optimizer
    epochs = (trainer.get_train_dataloader() for _ in itertools.count())
    batches = itertools.chain.from_iterable(epochs)
    while True:
        model.train()
        of_update = list(itertools.islice(batches, args.gradient_accumulation_steps))
        targets: Any = sum(batch["labels"].ne(-100).sum() for batch in of_update)
        tokens = float(sum(batch["attention_mask"].sum() for batch in of_update) + targets)
        for batch in of_update:
            trainer.training_step(model, batch, num_items_in_batch=targets)
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm or math.inf)
        optimizer.step()
        model.zero_grad()
        if args.device.type == "cuda":
            torch.cuda.synchronize()
        yield tokens


def target_token_flops(model: PreTrainedModel, source_length: int, target_length: int) -> float:
    """Floating-point operations of matrix products and convolutions for a target token.

    Counted by `torch.utils.flop_counter` in a forward pass over one pair of these lengths, encoder
    included."""
    source = torch.full((1, source_length), 2, device=model.device)
    target = torch.full((1, target_length), 2, device=model.device)
    model.eval()
    with counted_flops() as counter:
        model(input_ids=source, decoder_input_ids=target, use_cache=False)
    return counter.get_total_flops() / target_length


def _evaluation_seconds(trainer: TranslationTrainer, splits: dict[str, Any]) -> tuple[float, float]:
    """Seconds of an evaluation, and of the final scores, from one batch that is translated to the
    usual length.
    """
    if "validation" not in splits:
        return 0.0, 0.0
    batch = next(iter(trainer.get_eval_dataloader(splits["validation"])))
    length = int(batch["labels"].ne(-100).sum(dim=1).float().mean())
    model: Any = trainer.model
    model.eval()

    usual_beams = model.generation_config.num_beams or 1

    def seconds_of_a_sentence(num_beams: int) -> float:
        start = time.perf_counter()
        with trainer.accelerator.autocast():
            model.generate(
                input_ids=batch["input_ids"].to(model.device),
                attention_mask=batch["attention_mask"].to(model.device),
                num_beams=num_beams,
                max_length=None,
                max_new_tokens=length,
            )
        return (time.perf_counter() - start) / len(batch["labels"])

    evaluation = 0.0
    if trainer.args.predict_with_generate:
        evaluation = seconds_of_a_sentence(trainer.args.generation_num_beams or usual_beams)
    scoring = seconds_of_a_sentence(usual_beams)
    sentences = sum(len(split) for split in splits.values())
    return evaluation * len(splits["validation"]), scoring * sentences
