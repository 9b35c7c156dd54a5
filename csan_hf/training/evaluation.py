# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Evaluation in the trainer: sorted batches, translations, scores of text, rows in dataset order."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase, Seq2SeqTrainer
from transformers.trainer_utils import EvalLoopOutput

from csan_hf.data import example_lengths
from csan_hf.evaluation import score_translations

from .arguments import TranslationTrainingArguments
from .stopping import RunGuard, prepare_worker, signal_blocking_context

if TYPE_CHECKING:
    from csan_hf.data import TokenizerPair


class EvaluatingTrainer(Seq2SeqTrainer):
    """The part of `TranslationTrainer` that evaluates."""

    args: TranslationTrainingArguments
    model: PreTrainedModel
    tokenizers: TokenizerPair
    bleu_tokenize: str | None
    guard: RunGuard
    _evaluated: Dataset  # by the evaluation under way
    _order: list[int]  # its row at each sorted place
    _loss_sum: tuple[float, int] | None = None  # of the evaluation under way, and its target tokens
    _tokens_seen: Tensor | None = None
    _speed_start: float = 0.0  # since when _tokens_seen counts
    _speed_step: int = 0  # the update at that time

    def share_batches(self, rows: Any, batches: Any) -> DataLoader:
        """Loads batches (lists of row numbers, as many as a multiple of the processes), every
        process its own.
        """
        workers = self.args.dataloader_num_workers
        method: Any = self.args.dataloader_multiprocessing_context
        block = (
            self.guard.signals is not None
        )  # otherwise nothing would end a worker that ignores Ctrl-C
        init = partial(
            prepare_worker, num_workers=workers, rank=self.args.process_index, block=block
        )
        loader: DataLoader = DataLoader(
            rows,
            batch_sampler=batches,
            collate_fn=self.data_collator,
            num_workers=workers,
            pin_memory=self.args.dataloader_pin_memory,
            persistent_workers=self.args.dataloader_persistent_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
            worker_init_fn=init if workers else None,
            multiprocessing_context=(signal_blocking_context(method) if block else method)
            if workers
            else None,
        )
        return self.accelerator.prepare(loader)

    def get_eval_dataloader(self, eval_dataset: str | Dataset | None = None) -> DataLoader:
        """Returns evaluation batches, longest sentences first."""
        named: Any = self.eval_dataset
        dataset = named[eval_dataset] if isinstance(eval_dataset, str) else eval_dataset or named
        return (
            self._evaluation_batches(dataset, "evaluation")
            if dataset
            else super().get_eval_dataloader(None)
        )

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluates; the time that takes does not count in the tokens per second of training."""
        start = time.time()
        try:
            return super().evaluate(*args, **kwargs)
        finally:
            self._speed_start += time.time() - start

    def get_test_dataloader(self, test_dataset: Dataset) -> DataLoader:
        """Returns test batches, longest sentences first."""
        return self._evaluation_batches(test_dataset, "test")

    def _evaluation_batches(self, dataset: Dataset, description: str) -> DataLoader:
        lengths, _ = example_lengths(dataset)
        order = np.argsort(-lengths, kind="stable").tolist()
        self._evaluated, self._order = dataset, order
        batches = cut_for_processes(order, self.args.eval_batch_size, self.args.world_size)
        rows: Any = self._remove_unused_columns(dataset, description=description)
        if any(row >= len(rows) for row in batches[-1]):
            rows = RowsAndCopies(rows, order[-1])
        return self.share_batches(rows, batches)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **gen_kwargs: Any,
    ) -> tuple[Any, Tensor | None, Tensor | None]:
        """Translates one batch and adds up its loss by token."""
        # generate() calls the encoder by itself, outside the forward that accelerate puts under
        # autocast.
        with self.accelerator.autocast():
            result = super().prediction_step(
                model, inputs, prediction_loss_only, ignore_keys=ignore_keys, **gen_kwargs
            )
        loss: Any = result[0]
        if isinstance(loss, Tensor) and "labels" in inputs:
            count = int(inputs["labels"].ne(-100).sum())
            total, tokens = self._loss_sum or (0.0, 0)
            # A process whose rows are all copies has a loss of 0 / 0.
            self._loss_sum = (total + (float(loss) * count if count else 0.0), tokens + count)
        return result

    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Runs the library's loop, then puts predictions back into dataset order."""
        self._loss_sum = None
        output = super().evaluation_loop(
            dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
        )
        metrics = dict(output.metrics or {})
        if self._loss_sum is not None:
            # The library averages batch means, whatever their size; a token counts once here.
            sums = torch.tensor(self._loss_sum, dtype=torch.float32, device=self.args.device)
            total, count = self.accelerator.reduce(sums).tolist()
            metrics[f"{metric_key_prefix}_loss"] = total / max(count, 1.0)
        metrics.pop(f"{metric_key_prefix}_model_preparation_time", None)
        return EvalLoopOutput(
            predictions=self._restore_order(output.predictions),
            label_ids=self._restore_order(output.label_ids),
            metrics=metrics,
            num_samples=output.num_samples,
        )

    def _restore_order(self, rows: Any) -> Any:
        # Rows beyond the order are copies that even out the processes
        return rows[np.argsort(self._order)] if isinstance(rows, np.ndarray) else rows

    def _compute_metrics(self, prediction: EvalPrediction) -> dict[str, float]:
        rows = (
            self._restore_order(prediction.predictions),
            self._restore_order(prediction.label_ids),
        )
        _, scores = self._score(*rows)
        return {name: scores[name] for name in self.args.metrics}

    def _score(self, predictions: Any, labels: Any) -> tuple[list[str], dict[str, Any]]:
        """Returns the hypotheses of the dataset that was evaluated last, and their scores."""
        hypotheses, names = self.decode(predictions), self._evaluated.column_names
        return hypotheses, score_translations(
            hypotheses,
            list(self._evaluated["target"]) if "target" in names else self.decode(labels),
            sources=list(self._evaluated["source"]) if "source" in names else None,
            metrics=self.args.metrics,
            tokenize=self.bleu_tokenize,
        )

    def decode(self, token_ids: Any) -> list[str]:
        """Turns predictions [B, T] into text; -100, the padding between batches, counts as padding."""
        tokenizer: PreTrainedTokenizerBase = self.tokenizers.target
        ids = np.asarray(token_ids)
        ids = np.where(ids < 0, tokenizer.pad_token_id, ids)
        return [text.strip() for text in tokenizer.batch_decode(ids, skip_special_tokens=True)]

    def translate_dataset(
        self, dataset: Dataset, **generate_arguments: Any
    ) -> tuple[list[str], dict[str, Any]]:
        """Translates and scores a tokenized dataset, also where `args.predict_with_generate` spares
        evaluations that.

        Returns:
            The hypotheses in dataset order; and `loss` and what `score_translations` returns for
            ``args.metrics``.
        """
        if generate_arguments.get("num_beams") is None:
            generate_arguments["num_beams"] = self.model.generation_config.num_beams or 1
        in_evaluations = self.args.predict_with_generate, self.compute_metrics
        self.args.predict_with_generate, self.compute_metrics = (
            True,
            None,
        )  # scores without signatures
        try:
            output = self.predict(dataset, metric_key_prefix="test", **generate_arguments)
        finally:
            self.args.predict_with_generate, self.compute_metrics = in_evaluations
        hypotheses, scores = self._score(output.predictions, output.label_ids)
        return hypotheses, {**scores, "loss": (output.metrics or {}).get("test_loss")}


def cut_for_processes(order: Sequence[int], batch_size: int, processes: int) -> list[list[int]]:
    """Cuts an evaluation into batches, so that all processes have equally many of equal sizes.

    Process r of R takes the batches r, r + R, ...: the batches that are evaluated at the same time
    are neighbours in the order, which gathering restores.

    Args:
        order: The N rows, a permutation of 0, ..., N - 1.
        batch_size: Most rows of a batch.
        processes: Their number R.

    Returns:
        Batches of the order, followed by the fewest row numbers from N on, for copies, that make R
        equal shares.
    """
    count = len(order)
    size = batch_size
    if processes > 1:
        rounds = -(-count // (batch_size * processes))
        size = -(-count // (rounds * processes))
        order = [*order, *range(count, rounds * processes * size)]
    return [list(order[start : start + size]) for start in range(0, len(order), size)]


class RowsAndCopies(torch.utils.data.Dataset):
    """A dataset in which every number beyond the last row is a copy of one row, without labels that
    count.
    """

    def __init__(self, rows: Dataset, copied: int) -> None:
        self.rows, self.copied = rows, copied

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        if number < len(self.rows):
            return self.rows[number]
        row = dict(self.rows[self.copied])
        return {**row, "labels": [-100] * len(row["labels"])}
