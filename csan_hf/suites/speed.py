# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Speed of training of several systems, measured in turn in one process, and what a suite will
cost.
"""

from __future__ import annotations

import itertools
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import datasets
import torch
from transformers.utils import logging

from csan_hf.data import tokenize_dataset
from csan_hf.data.corpora import load_translation_dataset
from csan_hf.training.dry_run import counted_flops
from csan_hf.training.plan import resolve
from csan_hf.training.recipe import Recipe, RecipeError
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
        every = args.eval_steps or math.inf
        every = every * args.max_steps if every < 1 else every
        return (
            args.max_steps * self.seconds + args.max_steps // every * self.evaluation + self.scoring
        )


def measure_speed(
    recipes: dict[str, Recipe], *, rounds: int = ROUNDS, seconds: float = SECONDS
) -> dict[str, Speed]:
    """Times training updates of several systems in turn: one of each in every round, after an
    untimed one.

    So changes in the speed of the machine affect all systems alike, and no system pays for the
    memory and caches that the one before it left behind. The data are loaded and tokenized once.

    Args:
        recipes: Name of a system -> its recipe, all on the same data with the same tokenizers.
        rounds: Timed updates of each system, at least.
        seconds: How long to go on after them; small networks need many rounds, and these take
            little time.

    Raises:
        RecipeError: A recipe cannot be used.
    """
    verbosity, has_bars = logging.get_verbosity(), not datasets.are_progress_bars_disabled()
    logging.set_verbosity_error()
    datasets.disable_progress_bars()
    try:
        with tempfile.TemporaryDirectory() as folder:
            trainers, splits = _build_trainers(recipes, folder)
            taken = time_in_turn(
                {name: _updates(trainer) for name, trainer in trainers.items()}, rounds, seconds
            )
            found = {}
            for name, trainer in trainers.items():
                rates = (
                    [tokens / seconds for seconds, tokens in own]
                    for own in (taken[name], taken[next(iter(taken))])
                )
                found[name] = Speed(
                    parameters=sum(parameter.numel() for parameter in trainer.model.parameters()),
                    seconds=statistics.median(seconds for seconds, _ in taken[name]),
                    tokens=statistics.median(tokens for _, tokens in taken[name]),
                    relative=statistics.median(
                        rate / other for rate, other in zip(*rates, strict=True)
                    ),
                    **_evaluation_seconds(trainer, splits),
                    flops=target_token_flops(trainer.model, *_mean_lengths(splits)),
                )
            return found
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            datasets.enable_progress_bars()


def _build_trainers(
    recipes: dict[str, Recipe], folder: str
) -> tuple[dict[str, TranslationTrainer], dict[str, Any]]:
    """Returns a trainer of each system, and the splits that its runs translate."""
    plan = resolve(replace(next(iter(recipes.values())), output_dir=folder))
    splits, _ = load_translation_dataset(plan.data)
    tokenizers = plan.build_tokenizers(splits)
    tokenized, _ = tokenize_dataset(splits, tokenizers, plan.data)
    trainers = {}
    for name, recipe in recipes.items():
        # Without anything that writes or reports
        silent = {**recipe.training, "report_to": "none", "push_to_hub": False}
        try:
            plan = resolve(replace(recipe, output_dir=os.path.join(folder, name), training=silent))
            model = plan.build_model(tokenizers)
        except (ValueError, OSError) as error:
            raise RecipeError(f"{name}: {error}") from error
        data = {"train_dataset": tokenized["train"], "eval_dataset": tokenized.get("validation")}
        trainers[name] = TranslationTrainer(model, plan.arguments, tokenizers=tokenizers, **data)
    return trainers, {name: split for name, split in tokenized.items() if name != "train"}


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
            next(
                steps[name]
            )  # untimed: it pays for what the system before left in memory and caches
            start = time.perf_counter()
            tokens = next(steps[name])
            taken[name].append((time.perf_counter() - start, tokens))
    return {name: counted[WARM_UP:] for name, counted in taken.items()}


def _updates(trainer: TranslationTrainer) -> Iterator[float]:
    """Makes updates without end, in the precision of training; yields the tokens of each."""
    model: Any = trainer.accelerator.prepare_model(trainer.model)
    trainer.create_optimizer_and_scheduler(trainer.args.max_steps)
    optimizer: Any = trainer.optimizer
    wait: Callable[[], None] = (
        torch.cuda.synchronize if trainer.args.device.type == "cuda" else lambda: None
    )
    batches = itertools.chain.from_iterable(
        trainer.get_train_dataloader() for _ in itertools.count()
    )
    while True:
        model.train()
        of_update = list(itertools.islice(batches, trainer.args.gradient_accumulation_steps))
        targets: Any = sum(batch["labels"].ne(-100).sum() for batch in of_update)
        count = float(sum(batch["attention_mask"].sum() for batch in of_update) + targets)
        for batch in of_update:
            trainer.training_step(model, batch, num_items_in_batch=targets)
        torch.nn.utils.clip_grad_norm_(model.parameters(), trainer.args.max_grad_norm or math.inf)
        optimizer.step()
        model.zero_grad()
        wait()
        yield count


def target_token_flops(model: Any, source_length: int, target_length: int) -> float:
    """Floating-point operations of matrix products and convolutions for a target token.

    Counted by `torch.utils.flop_counter` in a forward pass over one pair of these lengths, encoder
    included."""
    source, target = (
        torch.full((1, length), 2, device=model.device) for length in (source_length, target_length)
    )
    model.eval()
    with counted_flops() as counter:
        model(input_ids=source, decoder_input_ids=target, use_cache=False)
    return counter.get_total_flops() / target_length


def _mean_lengths(splits: dict[str, Any]) -> tuple[int, int]:
    """Tokens of a source and of a target sentence, rounded means of the first split."""
    split = next(iter(splits.values()))
    source, target = (
        sum(map(len, split[column])) / len(split) for column in ("input_ids", "labels")
    )
    return round(source), round(target)


def _evaluation_seconds(trainer: TranslationTrainer, splits: dict[str, Any]) -> dict[str, float]:
    """Seconds of an evaluation, and of the final scores, from one batch that is translated to the
    usual length.
    """
    if "validation" not in splits:
        return {"evaluation": 0.0, "scoring": 0.0}
    batch = next(iter(trainer.get_eval_dataloader(splits["validation"])))
    length = int(batch["labels"].ne(-100).sum(dim=1).float().mean())
    inputs = {key: batch[key].to(trainer.args.device) for key in ("input_ids", "attention_mask")}
    model: Any = trainer.model
    beams = model.generation_config.num_beams or 1
    model.eval()

    def seconds_of_a_sentence(num_beams: int) -> float:
        start = time.perf_counter()
        with trainer.accelerator.autocast():
            model.generate(
                **inputs, num_beams=num_beams, max_length=None, max_new_tokens=max(length, 1)
            )
        return (time.perf_counter() - start) / len(batch["labels"])

    translates = trainer.args.predict_with_generate
    greedy = seconds_of_a_sentence(trainer.args.generation_num_beams or 1) if translates else 0.0
    final = seconds_of_a_sentence(beams)
    everything = sum(len(split) for split in splits.values())
    return {"evaluation": greedy * len(splits["validation"]), "scoring": final * everything}
