# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The Trainer for translation: token batches, smoothed loss, scores of text, predictions in order."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
from accelerate.utils import parse_flag_from_env
from datasets import Dataset
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn import functional as F
from torch.utils.data import DataLoader
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedModel,
    PrinterCallback,
    ProgressCallback,
    TrainerCallback,
    TrainerState,
)
from transformers.trainer import TRAINER_STATE_NAME

from csan_hf.data import (
    MixedBatchSampler,
    TargetMaskCollator,
    TokenBatchSampler,
    example_lengths,
    forward_set_epoch,
    with_bpe_dropout,
)
from csan_hf.families import family_of

from .arguments import TranslationTrainingArguments
from .callbacks import (
    KeepBestCheckpoints,
    ScoreEarlyStopping,
    TrainingPicture,
    TranslationProgress,
    evaluations_without_gain,
)
from .checkpoints import SavingTrainer, load_weights, read_weights
from .recipe import RecipeError, refusing
from .stopping import RunGuard

if TYPE_CHECKING:
    from csan_hf.data import TokenizerPair


class LabelSmoothedCrossEntropy:
    """Cross-entropy per target token with label smoothing, for the Trainer's `compute_loss_func`.

    The smoothing is torch's own (Vaswani et al. 2017, section 5.4): 1 - epsilon on the reference
    token plus epsilon / V on each of the V entries of the vocabulary. Under gradient accumulation
    the sum over a micro-batch is divided by the target tokens of the whole batch, so that
    micro-batches add up to the loss of one large batch.

    Args:
        epsilon: Smoothing mass, in [0, 1); 0 is plain cross-entropy.
    """

    def __init__(self, epsilon: float = 0.0) -> None:
        self.epsilon = epsilon

    def __call__(
        self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Computes the loss.

        Args:
            outputs: A model output with `logits` [B, I, V].
            labels: Reference token ids [B, I]; -100 is ignored.
            num_items_in_batch: Target tokens in the whole accumulated batch; None: those in
                `labels`.

        Returns:
            A scalar; 0 (with a gradient of 0) where no label counts.
        """
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        total = F.cross_entropy(
            logits.reshape(-1, logits.shape[-1]).float(),
            labels.reshape(-1),
            ignore_index=-100,
            reduction="sum",
            label_smoothing=self.epsilon,
        )
        count = labels.ne(-100).sum() if num_items_in_batch is None else num_items_in_batch
        # Under DataParallel the count arrives once per replica
        return total / torch.as_tensor(count, device=total.device).reshape(-1)[0].clamp(min=1)


class TranslationTrainer(SavingTrainer):
    """`Seq2SeqTrainer` for translation.

    - Training batches are bounded in tokens by `args.max_tokens`, or in grid cells by
      `args.max_cells`, unless that is None; their order is a function of seed and epoch, so a
      resumed run sees the same batches.
    - The training loss is `LabelSmoothedCrossEntropy`; gradient accumulation equals the whole
      batch. The validation loss is plain cross-entropy per target token, without smoothing, over
      the whole set.
    - Several processes count as one: in the loss, the statistics of batch normalisation and the
      evaluation.
    - Evaluation runs in order of length, translates, and scores the text by `args.metrics`;
      `predict` returns its rows in dataset order all the same.

    Args:
        model: Any sequence-to-sequence model that has `prepare_decoder_input_ids_from_labels`.
        args: The arguments.
        tokenizers: Source and target tokenizers, saved with each checkpoint.
        train_dataset: Columns `input_ids`, `attention_mask`, `labels`.
        eval_dataset: The same; if it also has the string column `target`, that is the reference
            text.
        callbacks: On top of progress, early stopping, the picture and the rotation of checkpoints.
        bleu_tokenize: sacreBLEU's tokenizer; None picks 13a.

    Raises:
        ValueError: If generation would stop at transformers' 20 tokens because no length is set.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        args: TranslationTrainingArguments,
        *,
        tokenizers: TokenizerPair,
        train_dataset: Dataset | None = None,
        eval_dataset: Dataset | None = None,
        callbacks: Sequence[TrainerCallback] = (),
        bleu_tokenize: str | None = None,
    ) -> None:
        generation = model.generation_config
        lengths = (generation.max_length, generation.max_new_tokens, args.generation_max_length)
        if args.predict_with_generate and lengths == (None, None, None):
            raise ValueError(
                "model.generation_config.max_length is not set, so generation would stop at 20 "
                "tokens: set it, or generation_max_length of the training arguments."
            )
        self.tokenizers = tokenizers
        self.bleu_tokenize = bleu_tokenize
        self.family = family_of(model.config.model_type)
        if args.world_size > 1 and self.family.has_batch_norm:
            normalised: Any = model
            normalised.synchronize_batch_norm(torch.distributed.group.WORLD)
        if args.world_size > 1 and (args.fsdp or parse_flag_from_env("ACCELERATE_USE_FSDP")):
            _prepare_sharding(model)
        patience = args.early_stopping_patience
        early_stopping = (
            []
            if patience is None
            else [ScoreEarlyStopping(patience, args.early_stopping_threshold)]
        )
        collator = TargetMaskCollator if self.family.has_batch_norm else DataCollatorForSeq2Seq
        super().__init__(
            model=model,
            args=args,
            data_collator=collator(tokenizers.source, model=model),
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=tokenizers.source,
            compute_loss_func=LabelSmoothedCrossEntropy(args.label_smoothing_factor),
            compute_metrics=self._compute_metrics if args.predict_with_generate else None,
            callbacks=[KeepBestCheckpoints(), TrainingPicture(), *early_stopping, *callbacks],
        )
        # The library's own smoother differs from torch's and would enter the validation loss.
        self.label_smoother = None
        for old in (ProgressCallback, PrinterCallback):
            self.remove_callback(old)
        self.add_callback(TranslationProgress())
        self.guard = RunGuard(self)
        self.add_callback(self.guard)
        self._clock: tuple[float, float] | None = (
            None  # (time, seconds trained) at the last reading
        )

    # ---- training batches

    def get_train_dataloader(self) -> DataLoader:
        """Returns batches bounded by `args.max_tokens` or `max_cells`, or the library's where that
        is None.
        """
        bound = self.args.max_cells if self.family.batch_cost == "cells" else self.args.max_tokens
        if bound is None or self.train_dataset is None:  # which the library refuses
            return super().get_train_dataloader()
        dataset = self._remove_unused_columns(self.train_dataset, description="training")
        mixes = (
            self.family.batch_cost == "cells"
            if self.args.mix_lengths is None
            else self.args.mix_lengths
        )
        kind = MixedBatchSampler if mixes else TokenBatchSampler
        with refusing("The section training is refused"):
            sampler = kind(
                *example_lengths(self.train_dataset),
                bound,
                seed=self.args.data_seed if self.args.data_seed is not None else self.args.seed,
                # An update takes one group of equal batches, however many processes share it
                num_replicas=self.args.world_size * self.args.gradient_accumulation_steps,
                shuffle=True,
                max_sentences=self.args.max_sentences,
                cost=self.family.batch_cost,
            )
        return forward_set_epoch(self.share_batches(dataset, sampler))

    def _remove_unused_columns(self, dataset: Dataset, description: str | None = None) -> Dataset:
        """See transformers; training sentences under BPE dropout are made of their texts."""
        if self.args.bpe_dropout and (description or "").lower() == "training":
            with refusing("The section training is refused"):
                return with_bpe_dropout(dataset, self.tokenizers, self.args.bpe_dropout)
        return super()._remove_unused_columns(dataset, description)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Trains, also after an evaluation with the same trainer."""
        # An evaluation prepares the model without wrapping it, and accelerate prepares nothing
        # twice: the processes would train apart, each with its own gradients, without a warning
        sharded, models = (
            self.is_fsdp_enabled or self.is_deepspeed_enabled,
            self.accelerator._models,
        )
        if (
            self.args.world_size > 1
            and not sharded
            and self.model_wrapped is self.model
            and self.model in models
        ):
            models.remove(self.model)
            self.accelerator.unwrap_model(
                self.model, keep_fp32_wrapper=False
            )  # or autocast would wrap it twice
            vars(self.model)["_is_accelerate_prepared"] = False  # accelerate's own mark
        return super().train(*args, **kwargs)

    def resume(self, checkpoint: Path) -> None:
        """Trains from a checkpoint on, or loads it where nothing is left to train."""
        self.check_same_data(checkpoint)
        state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
        if not self.is_finished(state):
            self.train(resume_from_checkpoint=str(checkpoint))
            return
        if self.is_world_process_zero():
            notice = f"Training had ended at update {state.global_step}: only the end of the run is repeated."
            print(notice, file=sys.stderr, flush=True)
        self.state = state
        state.is_world_process_zero = (
            self.is_world_process_zero()
        )  # the file was written by the main process
        state.is_local_process_zero = self.is_local_process_zero()
        self.guard.on_train_end(self.args, state, self.control)
        load_weights(self.model, read_weights(checkpoint))

    def training_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """One forward and backward, counting real (unpadded) tokens on the way."""
        if self._tokens_seen is None:
            self._speed_start, self._speed_step = time.time(), self.state.global_step
            self._tokens_seen = torch.zeros((), dtype=torch.long, device=self.args.device)
        count = inputs["attention_mask"].sum() + inputs["labels"].ne(-100).sum()
        self._tokens_seen = self._tokens_seen + count.to(self._tokens_seen.device)
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.guard.watch(loss)
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Logs, adding the seconds trained so far (evaluation included), and tokens and updates per
        second.
        """
        now = time.time()
        if self._clock is None:
            before = max(
                (entry.get("elapsed_seconds", 0.0) for entry in self.state.log_history), default=0.0
            )
            self._clock = (now if start_time is None else start_time, before)
        elapsed = now - self._clock[0]
        self._clock = (now, self._clock[1] + elapsed)
        logs = dict(logs)
        # A run shorter than logging_steps has its speed in the last entry alone
        is_only = "train_loss" in logs and not any(
            "tokens_per_second" in entry for entry in self.state.log_history
        )
        if ("loss" in logs or is_only) and self._tokens_seen is not None:
            tokens = (
                float(self._tokens_seen) * self.args.world_size
            )  # the other ranks have about as many
            seconds = max(now - self._speed_start, 1e-9)
            logs["tokens_per_second"] = round(tokens / seconds, 1)
            logs["updates_per_second"] = round(
                (self.state.global_step - self._speed_step) / seconds, 3
            )
            self._tokens_seen = None
        if self.is_in_train:
            logs["elapsed_seconds"] = round(self._clock[1], 2)
        super().log(logs, start_time)

    # ---- batch normalisation

    def refresh_batch_statistics(self) -> None:
        """Recomputes the statistics of batch normalisation with the current weights, over training
        batches.
        """
        model = self.accelerator.unwrap_model(self.model)
        if not self.family.has_batch_norm or self.args.batch_norm_batches == 0:
            return
        loader = self.get_train_dataloader()
        with self.compute_loss_context_manager():
            model.refresh_batch_statistics(
                {**self._prepare_inputs(batch), "use_cache": False}
                for batch in itertools.islice(loader, self.args.batch_norm_batches)
            )

    def is_finished(self, state: TrainerState) -> bool:
        """Says whether nothing is left to train from a checkpoint's state on; the library would do
        one update more.
        """
        args, patience = self.args, self.args.early_stopping_patience
        if patience is not None and evaluations_without_gain(args, state) >= patience:
            return True
        if args.max_steps > 0:
            return state.global_step >= args.max_steps
        # The run may have ended with another number of processes, and so with another number of
        # updates per epoch
        reached_its_end = (
            0 < state.max_steps <= state.global_step
            and (state.epoch or 0.0) >= args.num_train_epochs
        )
        updates = self.set_initial_training_values(args, self.get_train_dataloader())[-1]
        return reached_its_end or state.global_step >= updates


def _prepare_sharding(model: PreTrainedModel) -> None:
    """Merges embeddings that share their weights into one module: FSDP allows a weight in only one
    of its groups.
    """
    embedding, output = model.get_input_embeddings(), model.get_output_embeddings()
    model.set_input_embeddings(embedding)
    uses = [
        name
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if parameter is output.weight
    ]
    has_batch_norm = family_of(
        model.config.model_type
    ).has_batch_norm  # whose statistics every process needs whole
    if has_batch_norm or (len(uses) > 1 and output.weight is not embedding.weight):
        advice = (
            ""
            if has_batch_norm
            else ", or set config.tie_word_embeddings to false or tokenizer.joint to true"
        )
        raise RecipeError(
            f"FSDP cannot shard this {model.config.model_type} model: train it without FSDP "
            f"(accelerate launch --multi_gpu, or training.fsdp: false){advice}."
        )


def plain_class(model: nn.Module) -> type:
    """The class of a model, without what FSDP adds to it."""
    return next(found for found in type(model).__mro__ if not issubclass(found, FSDPModule))
