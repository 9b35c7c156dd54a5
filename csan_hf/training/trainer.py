# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The Trainer for translation: token batches, smoothed loss, scores of text, predictions in order."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed
from accelerate.utils import parse_flag_from_env
from datasets import Dataset
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import DataLoader
from transformers import (
    DataCollatorForSeq2Seq,
    EvalPrediction,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    TrainerCallback,
)
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, EvalLoopOutput, HubStrategy
from transformers.utils import PushInProgress

from csan_hf.data import (
    MixedBatchSampler,
    TargetMaskCollator,
    TokenBatchSampler,
    describe_dataset,
    example_lengths,
    forward_set_epoch,
)
from csan_hf.evaluation import score_translations
from csan_hf.families import family_of
from csan_hf.hub.push import push_checkpoint, push_in_background
from csan_hf.text_files import apply_umask

from .arguments import TranslationTrainingArguments
from .callbacks import default_callbacks, replace_progress_callbacks
from .checkpoints import last_complete_checkpoint, load_weights, mark_complete, mark_incomplete, read_weights
from .loss import LabelSmoothedCrossEntropy
from .options import RecipeError
from .processes import STOP_SIGNALS, RowsAndCopies, WorkerInit, cut_for_processes, signal_blocking_context
from .stopping import RunError, RunGuard

if TYPE_CHECKING:
    from csan_hf.data import TokenizerPair


@dataclass
class _EvaluationView:
    """What is needed to put the rows of a sorted evaluation back in place."""

    order: list[int]  # order[i] is the dataset row at sorted place i
    references: list[str] | None  # in sorted order; None: decode the labels instead
    sources: list[str] | None  # in sorted order, for metrics that compare with them


class TranslationTrainer(Seq2SeqTrainer):
    """`Seq2SeqTrainer` for translation.

    - Training batches are bounded in tokens by `args.max_tokens`, or in grid cells by `args.max_cells`
      (`csan_hf.data.TokenBatchSampler`), unless that is None; their order is a function of seed and epoch, so a
      resumed run sees the same batches.
    - The training loss is `LabelSmoothedCrossEntropy`; gradient accumulation equals the whole batch. The
      validation loss is plain cross-entropy per target token, without smoothing, over the whole set.
    - Several processes count as one: the loss is per target token of all of them, batch normalisation shares its
      statistics, an evaluation is divided among them and put together again.
    - Evaluation runs in order of length, translates, and scores the text by `args.metrics`;
      `predict` returns its rows in dataset order all the same.

    Args:
        model: Any sequence-to-sequence model that has `prepare_decoder_input_ids_from_labels`.
        args: The arguments.
        tokenizers: Source and target tokenizers, saved with each checkpoint.
        train_dataset: Columns `input_ids`, `attention_mask`, `labels`.
        eval_dataset: The same; if it also has the string column `target`, that is the reference text.
        callbacks: On top of progress, early stopping, the picture and the rotation of checkpoints.
        bleu_tokenize: sacreBLEU's tokenizer; None picks 13a.

    Raises:
        ValueError: If generation would stop at transformers' 20 tokens because no length is set.
    """

    args: TranslationTrainingArguments
    model: PreTrainedModel
    push_in_progress: Any

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
        self._check_generation_length(model, args)
        self.tokenizers = tokenizers
        self.bleu_tokenize = bleu_tokenize
        self.family = family_of(model.config.model_type)
        if args.world_size > 1 and self.family.has_batch_norm:
            normalised: Any = model
            normalised.synchronize_batch_norm(torch.distributed.group.WORLD)
        if args.world_size > 1 and sharding_is_asked_for(args):
            _prepare_sharding(model)
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
            callbacks=[*default_callbacks(args), *callbacks],
        )
        # The library's own smoother differs from torch's and would enter the validation loss.
        self.label_smoother = None
        replace_progress_callbacks(self)
        self.guard = RunGuard(self)
        self.add_callback(self.guard)
        self._view: _EvaluationView | None = None
        self._loss_sum: tuple[float, int] | None = None  # of the evaluation under way, and its target tokens
        self._data_facts: dict[str, Any] | None = None
        self._tokens_seen: Tensor | None = None
        self._clock: tuple[float, float] | None = None  # (time, seconds trained) at the last reading
        self._speed_start: float | None = None  # since when _tokens_seen counts
        self._speed_step = 0  # the update at that time

    @staticmethod
    def _check_generation_length(model: PreTrainedModel, args: TranslationTrainingArguments) -> None:
        config = model.generation_config
        if not args.predict_with_generate or args.generation_max_length is not None:
            return
        if config.max_length is None and config.max_new_tokens is None:
            raise ValueError(
                "model.generation_config.max_length is not set, so generation would stop at 20 tokens: "
                "set it, or generation_max_length of the training arguments."
            )

    # ---- training batches

    def get_train_dataloader(self) -> DataLoader:
        """Returns batches bounded by `args.max_tokens` or `max_cells`, or the library's where that is None."""
        bound = self.args.max_cells if self.family.batch_cost == "cells" else self.args.max_tokens
        if bound is None:
            return super().get_train_dataloader()
        if self.train_dataset is None:
            raise ValueError("TranslationTrainer: training requires a train_dataset.")
        dataset = self._remove_unused_columns(self.train_dataset, description="training")
        kind = MixedBatchSampler if self._mixes_lengths() else TokenBatchSampler
        try:
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
        except ValueError as error:
            raise RecipeError(f"The section training is refused: {error}") from error
        return forward_set_epoch(self._share_batches(dataset, sampler))

    def _share_batches(self, rows: Any, batches: Any) -> DataLoader:
        """Loads batches (lists of row numbers, as many as a multiple of the processes), every process its own."""
        workers = self.args.dataloader_num_workers
        method = self.args.dataloader_multiprocessing_context
        block = self.guard.signals is not None  # otherwise nothing would end a worker that ignores Ctrl-C
        init = WorkerInit(workers, self.args.process_index, STOP_SIGNALS if block else ())
        loader: DataLoader = DataLoader(
            rows,
            batch_sampler=batches,
            collate_fn=self.data_collator,
            num_workers=workers,
            pin_memory=self.args.dataloader_pin_memory,
            persistent_workers=self.args.dataloader_persistent_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
            worker_init_fn=init if workers else None,
            multiprocessing_context=(signal_blocking_context(method) if block else method) if workers else None,
        )
        return self.accelerator.prepare(loader)

    def _mixes_lengths(self) -> bool:
        mixes = self.args.mix_lengths
        return self.family.batch_cost == "cells" if mixes is None else mixes

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Trains, also after an evaluation with the same trainer."""
        self._forget_evaluation()
        return super().train(*args, **kwargs)

    def _forget_evaluation(self) -> None:
        """Lets accelerate wrap the model for training.

        An evaluation before training prepares the model without wrapping it, and accelerate prepares nothing twice:
        the processes would train apart, each with its own gradients, without a warning.
        """
        sharded = self.is_fsdp_enabled or self.is_deepspeed_enabled
        models = self.accelerator._models
        if self.args.world_size == 1 or sharded or self.model_wrapped is not self.model or self.model not in models:
            return
        models.remove(self.model)
        self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=False)  # or autocast would wrap it twice
        vars(self.model)["_is_accelerate_prepared"] = False  # accelerate's own mark

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
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
        """Logs, adding the seconds trained so far (evaluation included), and tokens and updates per second."""
        now = time.time()
        if self._clock is None:
            self._clock = (now if start_time is None else start_time, self._seconds_before())
        elapsed = now - self._clock[0]
        self._clock = (now, self._clock[1] + elapsed)
        logs = dict(logs)
        if "loss" in logs and self._tokens_seen is not None and self._speed_start is not None:
            tokens = float(self._tokens_seen) * self.args.world_size  # the other ranks have about as many
            seconds = max(now - self._speed_start, 1e-9)
            logs["tokens_per_second"] = round(tokens / seconds, 1)
            logs["updates_per_second"] = round((self.state.global_step - self._speed_step) / seconds, 3)
            self._tokens_seen = None
        if self.is_in_train:
            logs["elapsed_seconds"] = round(self._clock[1], 2)
        super().log(logs, start_time)

    def _seconds_before(self) -> float:
        """Returns the seconds that the interrupted run had trained when this one took over."""
        return max((entry.get("elapsed_seconds", 0.0) for entry in self.state.log_history), default=0.0)

    # ---- evaluation

    def get_eval_dataloader(self, eval_dataset: str | Dataset | None = None) -> DataLoader:
        """Returns evaluation batches, longest sentences first."""
        if isinstance(eval_dataset, str):
            named: Any = self.eval_dataset
            eval_dataset = named[eval_dataset]
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if dataset is None:
            raise ValueError("TranslationTrainer: evaluation requires an eval_dataset.")
        return self._evaluation_batches(dataset, "evaluation")

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluates; the time that takes does not count in the tokens per second of training."""
        self._tokens_seen = None
        return super().evaluate(*args, **kwargs)

    def get_test_dataloader(self, test_dataset: Dataset) -> DataLoader:
        """Returns test batches, longest sentences first."""
        return self._evaluation_batches(test_dataset, "test")

    def _evaluation_batches(self, dataset: Dataset, description: str) -> DataLoader:
        lengths, _ = example_lengths(dataset)
        order = np.argsort(-lengths, kind="stable").tolist()
        self._view = _EvaluationView(
            order, _sorted_text(dataset, "target", order), _sorted_text(dataset, "source", order)
        )
        batches = cut_for_processes(order, self.args.eval_batch_size, self.args.world_size)
        rows: Any = self._remove_unused_columns(dataset, description=description)
        if any(row >= len(rows) for row in batches[-1]):
            rows = RowsAndCopies(rows, order[-1])
        return self._share_batches(rows, batches)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **gen_kwargs: Any,
    ) -> tuple[Any, Tensor | None, Tensor | None]:
        """Translates one batch and adds up its loss by token."""
        # generate() calls the encoder by itself, outside the forward that accelerate puts under autocast.
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
        output = super().evaluation_loop(dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)
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
        if self._view is None or not isinstance(rows, np.ndarray):
            return rows
        restored = np.empty_like(rows[: len(self._view.order)])
        restored[self._view.order] = rows[: len(self._view.order)]  # beyond: copies that even out the processes
        return restored

    def _compute_metrics(self, prediction: EvalPrediction) -> dict[str, float]:
        """Scores a sorted evaluation: corpus scores do not depend on the order."""
        hypotheses = self.decode(prediction.predictions)
        references = self._view.references if self._view is not None else None
        if references is None:
            references = self.decode(prediction.label_ids)
        number = len(self._view.order) if self._view is not None else len(references)
        sources = self._view.sources if self._view is not None else None
        scores = score_translations(
            hypotheses[:number],
            references[:number],
            sources=sources,
            metrics=self.args.metrics,
            tokenize=self.bleu_tokenize,
        )
        return {name: scores[name] for name in self.args.metrics}

    def decode(self, token_ids: Any) -> list[str]:
        """Turns predictions [B, T] into text; -100, the padding between batches, counts as padding."""
        tokenizer: PreTrainedTokenizerBase = self.tokenizers.target
        ids = np.asarray(token_ids)
        ids = np.where(ids < 0, tokenizer.pad_token_id, ids)
        return [text.strip() for text in tokenizer.batch_decode(ids, skip_special_tokens=True)]

    def translate_dataset(self, dataset: Dataset, **generate_arguments: Any) -> tuple[list[str], dict[str, float]]:
        """Translates a tokenized dataset, also where ``args.predict_with_generate`` spares evaluations that.

        Args:
            dataset: As `eval_dataset`.
            generate_arguments: For `generate`; `num_beams` None means the generation config's.

        Returns:
            The hypotheses in dataset order, and `loss` and the metrics without prefix.
        """
        if generate_arguments.get("num_beams") is None:
            generate_arguments["num_beams"] = self.model.generation_config.num_beams or 1
        in_evaluations, self.args.predict_with_generate = self.args.predict_with_generate, True
        try:
            output = self.predict(dataset, metric_key_prefix="test", **generate_arguments)
        finally:
            self.args.predict_with_generate = in_evaluations
        metrics = {key.removeprefix("test_"): value for key, value in (output.metrics or {}).items()}
        return self.decode(output.predictions), metrics

    # ---- batch normalisation

    def refresh_batch_statistics(self) -> None:
        """Recomputes the statistics of batch normalisation with the current weights, over training batches."""
        model = self.accelerator.unwrap_model(self.model)
        if not self.family.has_batch_norm or self.args.batch_norm_batches == 0:
            return
        loader = self.get_train_dataloader()
        with self.compute_loss_context_manager():
            model.refresh_batch_statistics(
                {**self._prepare_inputs(batch), "use_cache": False}
                for batch in itertools.islice(loader, self.args.batch_norm_batches)
            )

    # ---- loading and saving

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Saves a checkpoint, and then a list of its files, without which it counts as cut off.

        Raises:
            RunError: If the weights are not finite, which must not take the place of a good checkpoint; or if the
                disk is full or fails.
        """
        self.guard.check()
        self._check_weights()
        folder = Path(self._get_output_dir(trial=trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        mark_incomplete(folder)
        try:
            super()._save_checkpoint(model, trial)
            self._mark_complete(folder)
        except (OSError, RuntimeError, SafetensorError) as error:
            if isinstance(error, RunError):
                raise
            shutil.rmtree(folder, ignore_errors=True)
            free = shutil.disk_usage(folder.parent).free / 1e9
            raise RunError(
                f"{folder} could not be saved: {str(error).splitlines()[0]} (free there: {free:.1f} GB). The "
                f"incomplete folder was deleted; nothing was saved since {self.last_checkpoint()}. Make room, then "
                "start the same command again (without --overwrite) to go on from there."
            ) from error

    def _mark_complete(self, folder: Path) -> None:
        """Lists the files, when all processes have written theirs."""
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            mark_complete(folder, step=self.state.global_step, **self.describe_run())

    def _check_weights(self) -> None:
        weights = [weight for weight in self.model.state_dict().values() if weight.is_floating_point()]
        parts = [weight.to_local() if hasattr(weight, "to_local") else weight for weight in weights]  # of FSDP
        bad = torch.stack([~torch.isfinite(part).all() for part in parts if part.numel()]).any().int()
        if self.args.world_size > 1:
            torch.distributed.all_reduce(bad, op=torch.distributed.ReduceOp.MAX)
        if bad:
            raise RunError(
                f"After update {self.state.global_step} the weights are not finite (NaN or infinite), though the loss "
                f"was: its gradient overflowed. Nothing was saved since {self.last_checkpoint()}. Start anew with a "
                "lower training.learning_rate, or with bf16 instead of fp16."
            )

    def last_checkpoint(self) -> str:
        """Returns the path of the newest complete checkpoint, or "the start"."""
        return str(last_complete_checkpoint(self.args.output_dir) or "the start")

    def describe_run(self) -> dict[str, Any]:
        """Returns what is compared when a run is resumed: the number of processes, training and validation set."""
        if self._data_facts is None:
            train, validation = self.train_dataset, self.eval_dataset
            self._data_facts = {
                "training_set": None if train is None else describe_dataset(train),
                "validation_set": describe_dataset(validation, references=True)
                if isinstance(validation, Dataset)
                else None,
            }
        return {"processes": self.args.world_size, **self._data_facts}

    def count_updates(self) -> int:
        """Returns the number of updates of the whole run, if nothing stops it earlier."""
        return self.set_initial_training_values(self.args, self.get_train_dataloader())[-1]

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Keeps quiet about tied weights, which a checkpoint stores once."""
        tied = set(getattr(self.model, "all_tied_weights_keys", None) or {})
        missing = [key for key in load_result.missing_keys if key not in tied]
        super()._issue_warnings_after_load(type(load_result)(missing, load_result.unexpected_keys))

    def _load_best_model(self) -> None:
        """Loads the best checkpoint; a sharded model by `load_weights`, as the library fails on tied weights."""
        if isinstance(self.model, FSDPModule):
            load_weights(self.model, read_weights(str(self.state.best_model_checkpoint)))
        else:
            super()._load_best_model()

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Loads the weights of a checkpoint to resume from; see `_load_best_model`."""
        if isinstance(self.model, FSDPModule):
            load_weights(self.model, read_weights(resume_from_checkpoint))
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        # First: saving a model warns where its second tokenizer is missing
        self.tokenizers.save_pretrained(output_dir or self.args.output_dir)
        super()._save(output_dir, state_dict)
        apply_umask(Path(output_dir or self.args.output_dir).glob("*.safetensors"))

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Uploads the public files of a checkpoint in the background; the library would upload the whole folder."""
        if not self.is_world_process_zero() or self.args.hub_strategy == HubStrategy.END:
            return
        pushing = self.push_in_progress is not None and not self.push_in_progress.is_done()
        if pushing and not self.args.hub_always_push:
            return
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        job = push_in_background(
            Path(checkpoint_folder),
            str(self.hub_model_id),
            recipe=Path(self.args.output_dir, "recipe.yaml"),
            token=self.args.hub_token,
            revision=self.args.hub_revision,
            commit_message=f"Training in progress, step {self.state.global_step}",
        )
        jobs: Any = [*self.push_in_progress.jobs, job] if pushing else [job]  # the library types one and takes several
        self.push_in_progress = PushInProgress(jobs)

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Saves the model and uploads its public files; see the library for the arguments.

        Returns:
            The commit; the upload is always waited for.
        """
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        self.create_model_card(model_name=str(self.hub_model_id).split("/")[-1], **kwargs)
        self._finish_current_push()
        return push_checkpoint(
            self.args.output_dir,
            str(self.hub_model_id),
            token=token or self.args.hub_token,
            revision=revision or self.args.hub_revision,
            private=private,
            commit_message=str(commit_message),
            check=False,
        )


def sharding_is_asked_for(args: TranslationTrainingArguments) -> bool:
    """Says whether the run is to use FSDP, by its recipe or by the launch."""
    return bool(args.fsdp) or parse_flag_from_env("ACCELERATE_USE_FSDP")


def _prepare_sharding(model: PreTrainedModel) -> None:
    """Merges embeddings that share their weights into one module: FSDP allows a weight in only one of its groups.

    Raises:
        RecipeError: For a family with batch normalisation, whose statistics every process needs whole; and if the
            output projection shares the weights of another embedding than the source's.
    """
    name = model.config.model_type
    if family_of(name).has_batch_norm:
        raise RecipeError(
            f"FSDP does not work with {name}: its few million parameters fit into every device, so train "
            "it without FSDP (accelerate launch --multi_gpu, or training.fsdp: false)."
        )
    embedding, output = model.get_input_embeddings(), model.get_output_embeddings()
    model.set_input_embeddings(embedding)
    uses = [name for name, parameter in model.named_parameters(remove_duplicate=False) if parameter is output.weight]
    if len(uses) > 1 and output.weight is not embedding.weight:
        raise RecipeError(
            "FSDP cannot share the output projection's weights with the target embedding alone: set "
            "config.tie_word_embeddings to false, or tokenizer.joint to true, or train without FSDP."
        )


def plain_class(model: nn.Module) -> type:
    """The class of a model, without what FSDP adds to it."""
    return next(found for found in type(model).__mro__ if not issubclass(found, FSDPModule))


def _sorted_text(dataset: Dataset, column: str, order: Sequence[int]) -> list[str] | None:
    if column not in dataset.column_names:
        return None
    text = list(dataset[column])
    return [text[row] for row in order]
