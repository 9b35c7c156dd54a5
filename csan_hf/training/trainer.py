# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The Trainer for translation: token batches, smoothed loss, scores of text, whole checkpoints."""

import functools
import itertools
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
from accelerate.utils import parse_flag_from_env
from datasets import Dataset
from numpy.typing import ArrayLike
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Sampler, SequentialSampler
from transformers import (
    DataCollatorForSeq2Seq,
    EvalPrediction,
    PreTrainedModel,
    PrinterCallback,
    ProgressCallback,
    Seq2SeqTrainer,
    TrainerCallback,
    TrainerState,
)
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, EvalLoopOutput, HubStrategy
from transformers.utils import PushInProgress

from csan_hf.data import (
    StreamedBatches,
    TargetMaskCollator,
    TokenizerPair,
    TokenStream,
    describe_dataset,
    forward_set_epoch,
    with_bpe_dropout,
)
from csan_hf.data.joining import LINE_FEED
from csan_hf.evaluation.scores import score_translations, search_name
from csan_hf.families import family_of
from csan_hf.hub.push import push_checkpoint, push_in_background
from csan_hf.models.seq2seq_model import Seq2SeqForGeneration
from csan_hf_runtime.text_files import apply_umask

from .arguments import TranslationTrainingArguments
from .batches import training_batches
from .callbacks import (
    ScoreEarlyStopping,
    TrainingPicture,
    TranslationProgress,
    evaluations_without_gain,
)
from .checkpoints import (
    UNFINISHED,
    check_same_data,
    last_checkpoint,
    load_weights,
    name_checkpoint,
    rank_checkpoints,
    read_stream_state,
    read_weights,
    rotate_checkpoints,
    write_stream_state,
)
from .compilation import train_uncompiled_on_failure
from .errors import RecipeError, notify, refusing
from .evaluation import Evaluation
from .loss import LabelSmoothedCrossEntropy, TaughtLabels, TrainingLoss
from .stopping import (
    RunError,
    RunGuard,
    RunInterrupted,
    prepare_worker,
    signal_blocking_context,
)
from .teachers import COLUMNS, Teacher, TeacherCollator, take_teaching
from .unlabelled import WEIGHT


def _with_stripped_lines(text: str) -> str:
    """A text whose lines, blank ones too, have no white space at their ends."""
    return LINE_FEED.join(map(str.strip, text.split(LINE_FEED)))


class TranslationTrainer(Seq2SeqTrainer):
    """`Seq2SeqTrainer` for translation.

    - Training batches are bounded in tokens by `args.max_tokens`, or in grid cells by
      `args.max_cells`, unless that is None; their order is a function of seed and epoch, so a
      resumed run sees the same batches.
    - The training loss is `LabelSmoothedCrossEntropy`; gradient accumulation equals the whole
      batch. The validation loss is plain cross-entropy per target token, without smoothing, over
      the whole set.
    - A checkpoint is written in a staging folder and named when all processes have written theirs.
    - Several processes count as one: in the loss, the statistics of batch normalisation and the
      evaluation.
    - Evaluation runs in order of length, translates, and scores the text by `args.metrics`;
      `predict` returns its rows in dataset order all the same.

    Args:
        model: Any sequence-to-sequence model that has `prepare_decoder_input_ids_from_labels`.
        args: The arguments.
        tokenizers: Source and target tokenizers, saved with each checkpoint.
        train_dataset: Columns `input_ids`, `attention_mask`, `labels`; or a stream without an end,
            for `args.max_steps`, of which a checkpoint holds the state. With the columns of `teach`
            the loss has the teachers' part.
        eval_dataset: The same; if it also has the string column `target`, that is the reference
            text.
        callbacks: On top of progress, early stopping and the picture.
        bleu_tokenize: sacreBLEU's tokenizer; None = that of the references' script.
        teachers: Those that taught the training set, which each checkpoint names.

    Raises:
        ValueError: If generation would stop at transformers' 20 tokens because no length is set.
    """

    args: TranslationTrainingArguments
    model: PreTrainedModel
    # The library types these as never set
    push_in_progress: Any
    _signature_columns: Any
    _evaluation: Evaluation

    def __init__(
        self,
        model: PreTrainedModel,
        args: TranslationTrainingArguments,
        *,
        tokenizers: TokenizerPair,
        train_dataset: Dataset | TokenStream | None = None,
        eval_dataset: Dataset | None = None,
        callbacks: Sequence[TrainerCallback] = (),
        bleu_tokenize: str | None = None,
        teachers: Sequence[Teacher] = (),
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
        self.teachers = teachers
        self.family = family_of(model.config.model_type)
        if args.world_size > 1:
            self._prepare_for_processes(model, args)
        if args.torch_compile:
            train_uncompiled_on_failure()
        self._criterion = LabelSmoothedCrossEntropy(
            args.label_smoothing_factor,
            teacher_weight=args.teacher_weight,
            teacher_temperature=args.teacher_temperature,
        )
        network: Any = model
        if hasattr(network, "get_base_model"):  # with adapters
            network = network.get_base_model()
        self._takes_training_loss = isinstance(network, Seq2SeqForGeneration)
        self.search = search_name(args.generation_num_beams or model.generation_config.num_beams)
        callbacks = [TrainingPicture(self.search), *callbacks]
        if args.early_stopping_patience is not None:
            callbacks.append(
                ScoreEarlyStopping(args.early_stopping_patience, args.early_stopping_threshold)
            )
        collator = TargetMaskCollator if self.family.has_batch_norm else DataCollatorForSeq2Seq
        super().__init__(
            model=model,
            args=args,
            data_collator=TeacherCollator(collator(tokenizers.source, model=model)),
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=tokenizers.source,
            compute_loss_func=self._loss_of_outputs,
            compute_metrics=self._compute_metrics if args.predict_with_generate else None,
            callbacks=callbacks,
        )
        # The library's own smoother differs from torch's and would enter the validation loss.
        self.label_smoother = None
        self.remove_callback(ProgressCallback)
        self.remove_callback(PrinterCallback)
        self.add_callback(TranslationProgress(self.search))
        self.guard = RunGuard(args)
        self.add_callback(self.guard)
        self._tokens_seen: Tensor | None = None  # since the last report of the speed
        self._speed_start = 0.0  # time since when they count, evaluations left out
        self._speed_step = 0  # the update at that time
        self._start_time: float | None = None  # of all training, as if it were uninterrupted

    def _prepare_for_processes(
        self, model: PreTrainedModel, args: TranslationTrainingArguments
    ) -> None:
        if self.family.has_batch_norm:
            normalised: Any = model
            normalised.synchronize_batch_norm(torch.distributed.group.WORLD)
        if args.fsdp or parse_flag_from_env("ACCELERATE_USE_FSDP"):
            _prepare_sharding(model, self.family.has_batch_norm)

    # ---- training

    def get_train_dataloader(self) -> DataLoader:
        """Returns batches bounded by `args.max_tokens` or `max_cells`, or the library's where that
        is None.
        """
        is_bounded = self.args.batch_bound(self.family) is not None
        if not is_bounded or self.train_dataset is None:  # the library refuses the latter
            return super().get_train_dataloader()
        if isinstance(self.train_dataset, TokenStream):
            # No workers, which would be ahead of the state that is saved
            # A generator of its own: a resumed run begins to read after its random numbers are set
            return DataLoader(
                self._stream,
                batch_size=None,
                collate_fn=self.data_collator,
                generator=torch.Generator(),
            )
        rows = self._remove_unused_columns(self.train_dataset, description="training")
        batches = training_batches(
            self.train_dataset, self.args, self.family, processes=self.args.world_size
        )
        return forward_set_epoch(self._load(rows, batches))

    def _load(self, rows: Dataset, batches: Sampler[list[int]]) -> DataLoader:
        """Loads batches, lists of row numbers, each process its own."""
        args = self.args
        context = None
        if args.dataloader_num_workers:
            context = signal_blocking_context(args.dataloader_multiprocessing_context)
        prepare = functools.partial(
            prepare_worker, num_workers=args.dataloader_num_workers, rank=args.process_index
        )
        loader: DataLoader = DataLoader(
            rows,
            batch_sampler=batches,
            collate_fn=self.data_collator,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            worker_init_fn=prepare,
            multiprocessing_context=context,
        )
        return self.accelerator.prepare(loader)

    @functools.cached_property
    def _stream(self) -> StreamedBatches:
        stream: Any = self.train_dataset
        return StreamedBatches(
            stream,
            self._cut_buffer,
            rank=self.args.process_index,
            processes=self.args.world_size,
        )

    def _cut_buffer(self, buffer: Dataset, number: int) -> Iterable[list[dict[str, Any]]]:
        """The batches of a buffer of a stream, shuffled by its number."""
        batches = training_batches(buffer, self.args, self.family, processes=1)
        batches.set_epoch(number)
        rows = self._remove_unused_columns(buffer, description="training")
        return map(rows.__getitems__, batches)

    def _remove_unused_columns(self, dataset: Dataset, description: str | None = None) -> Dataset:
        """See transformers; training sentences under BPE dropout are made of their texts."""
        if self.args.bpe_dropout and (description or "").lower() == "training":
            with refusing("The section training is refused"):
                return with_bpe_dropout(dataset, self.tokenizers, self.args.bpe_dropout)
        return super()._remove_unused_columns(dataset, description)

    def _set_signature_columns_if_needed(self) -> None:
        """See transformers; what teachers say is for the loss."""
        super()._set_signature_columns_if_needed()
        if not COLUMNS.keys() <= set(self._signature_columns):
            self._signature_columns += [*COLUMNS, WEIGHT]

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Trains, also after an evaluation with the same trainer."""
        # An evaluation prepares the model without wrapping it, and accelerate prepares nothing
        # twice: each process would silently train with its own gradients
        is_sharded = self.is_fsdp_enabled or self.is_deepspeed_enabled
        if self.args.world_size > 1 and not is_sharded and self.model_wrapped is self.model:
            # Or autocast would wrap it twice
            self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=False)
            vars(self.model)["_is_accelerate_prepared"] = False  # accelerate's own mark
        try:
            return super().train(*args, **kwargs)
        except RunInterrupted as stop:
            if stop.is_saved:
                # Closes bars and logs
                self.callback_handler.on_train_end(self.args, self.state, self.control)
                self._finish_current_push()
            raise

    def resume(self, checkpoint: Path) -> None:
        """Trains from a checkpoint on, or loads it where nothing is left to train.

        Raises:
            RecipeError: If the training or validation set is not the checkpoint's.
        """
        notice = check_same_data(checkpoint, self.describe_run())
        if notice is not None:
            notify(notice)
        state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
        if not self.is_finished(state):
            if isinstance(self.train_dataset, TokenStream):
                self._stream.load_state_dict(read_stream_state(checkpoint, self.args))
                self.args.ignore_data_skip = True
            self.train(resume_from_checkpoint=str(checkpoint))
            return
        notify(
            f"Training had ended at update {state.global_step}: only the end of the run is "
            "repeated."
        )
        self.state = state
        # The main process wrote the file
        state.is_world_process_zero = self.is_world_process_zero()
        state.is_local_process_zero = self.is_local_process_zero()
        self.guard.on_train_end(self.args, state, self.control)
        load_weights(self.model, read_weights(checkpoint))

    def is_finished(self, state: TrainerState) -> bool:
        """Whether nothing is left to train from a checkpoint's state on; the library would do one
        update more.
        """
        args = self.args
        patience = args.early_stopping_patience
        if (
            patience is not None
            and evaluations_without_gain(args, state, args.early_stopping_threshold) >= patience
        ):
            return True
        if args.max_steps > 0:
            return state.global_step >= args.max_steps
        # The run may have ended with another number of processes, and so with another number of
        # updates per epoch
        reached_its_end = (
            0 < state.max_steps <= state.global_step
            and (state.epoch or 0.0) >= args.num_train_epochs
        )
        *_, updates = self.set_initial_training_values(args, self.get_train_dataloader())
        return reached_its_end or state.global_step >= updates

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Tensor:
        """One forward and backward, counting real (unpadded) tokens on the way."""
        if self._tokens_seen is None:
            self._speed_start = time.time()
            self._speed_step = self.state.global_step
            self._tokens_seen = torch.zeros((), dtype=torch.long, device=self.args.device)
        count = inputs["attention_mask"].sum() + inputs["labels"].ne(-100).sum()
        self._tokens_seen = self._tokens_seen + count.to(self._tokens_seen.device)
        loss = super().training_step(model, inputs, *args, **kwargs)
        self.guard.watch(loss)
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Logs, adding the seconds trained so far (evaluation included), and tokens and updates per
        second.
        """
        now = time.time()
        history = self.state.log_history
        if self._start_time is None:
            earlier = [entry.get("elapsed_seconds", 0.0) for entry in history]
            process_start = now if start_time is None else start_time
            self._start_time = process_start - max(earlier, default=0.0)
        logs = dict(logs)
        # A run shorter than logging_steps has its speed in the last entry alone
        has_no_speed = not any("tokens_per_second" in entry for entry in history)
        reports_speed = "loss" in logs or ("train_loss" in logs and has_no_speed)
        if reports_speed and self._tokens_seen is not None:
            # The other processes have about as many
            tokens = float(self._tokens_seen) * self.args.world_size
            updates = self.state.global_step - self._speed_step
            seconds = max(now - self._speed_start, 1e-9)
            logs["tokens_per_second"] = round(tokens / seconds, 1)
            logs["updates_per_second"] = round(updates / seconds, 3)
            self._tokens_seen = None
        if self.is_in_train:
            logs["elapsed_seconds"] = round(now - self._start_time, 2)
        super().log(logs, start_time)

    def refresh_batch_statistics(self) -> None:
        """Recomputes the statistics of batch normalisation with the current weights, over training
        batches.
        """
        if not self.family.has_batch_norm or self.args.batch_norm_batches == 0:
            return
        model = self.accelerator.unwrap_model(self.model)
        batches = itertools.islice(self.get_train_dataloader(), self.args.batch_norm_batches)
        with self.compute_loss_context_manager():
            model.refresh_batch_statistics(map(self._inputs_of_statistics, batches))

    def _inputs_of_statistics(self, batch: dict[str, Any]) -> dict[str, Any]:
        inputs = self._prepare_inputs(batch)
        take_teaching(inputs)  # the model does not know their columns
        return {**inputs, "use_cache": False}

    # ---- evaluation

    def get_eval_dataloader(self, eval_dataset: str | Dataset | None = None) -> DataLoader:
        """Returns evaluation batches, longest sentences first."""
        dataset: Any = self.eval_dataset if eval_dataset is None else eval_dataset
        if not dataset:
            return super().get_eval_dataloader()  # which refuses that
        return self.get_test_dataloader(dataset)

    def get_test_dataloader(self, test_dataset: Dataset) -> DataLoader:
        """Returns batches of a dataset, longest sentences first."""
        self._evaluation = Evaluation(test_dataset)
        rows = self._remove_unused_columns(test_dataset, description="evaluation")
        rows = rows.select(self._evaluation.order)
        batches = BatchSampler(SequentialSampler(rows), self.args.eval_batch_size, drop_last=False)
        return self._load(rows, batches)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluates; the time that takes does not count in the tokens per second of training."""
        start = time.time()
        try:
            return super().evaluate(*args, **kwargs)
        finally:
            self._speed_start += time.time() - start

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The smoothed loss in training, in evaluation the model's own."""
        if model.training:
            taught = take_teaching(inputs)
            inputs["labels"] = taught  # the library hands them to `_loss_of_outputs`
            if self._takes_training_loss:
                inputs["training_loss"] = TrainingLoss(self._criterion, taught, num_items_in_batch)
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        outputs = model(**inputs)
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]

    def _loss_of_outputs(
        self,
        outputs: Mapping[str, Tensor],
        labels: TaughtLabels,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """The loss that the model has computed itself, or that of its logits."""
        if self._takes_training_loss:
            return outputs["loss"]
        return self._criterion(outputs, labels, num_items_in_batch)

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> tuple[Any, Tensor | None, Tensor | None]:
        """Translates one batch and adds up its loss by token."""
        self._leave_out_copies(inputs)
        # generate() calls the encoder by itself, outside the forward that accelerate puts under
        # autocast.
        with self.accelerator.autocast():
            loss, predictions, labels = super().prediction_step(model, inputs, *args, **kwargs)
        if loss is not None and "labels" in inputs:
            self._evaluation.add_loss(float(loss), inputs["labels"])
        return loss, predictions, labels

    def _leave_out_copies(self, inputs: dict[str, Any]) -> None:
        """Hides the labels of rows that accelerate repeats to even out the processes: -100."""
        state = self.accelerator.gradient_state
        if state.end_of_dataloader and state.remainder > 0 and "labels" in inputs:
            labels = inputs["labels"]
            real_rows = state.remainder - self.args.process_index * len(labels)
            labels[max(real_rows, 0) :] = -100

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Runs the library's loop, then puts predictions back into dataset order."""
        output = super().evaluation_loop(*args, **kwargs)
        metrics = dict(output.metrics or {})
        loss = self._evaluation.mean_loss(self.accelerator)
        if loss is not None:
            metrics[f"{kwargs.get('metric_key_prefix', 'eval')}_loss"] = loss
        return output._replace(
            predictions=self._evaluation.restore_order(output.predictions),
            label_ids=self._evaluation.restore_order(output.label_ids),
            metrics=metrics,
        )

    def _compute_metrics(self, prediction: EvalPrediction) -> dict[str, float]:
        """Scores the dataset under evaluation, and keeps its hypotheses and all of the scores."""
        evaluation = self._evaluation
        dataset = evaluation.dataset
        columns = dataset.column_names
        if "target" in columns:
            references = list(dataset["target"])
        else:
            references = self.decode(evaluation.restore_order(prediction.label_ids))
        evaluation.hypotheses = self.decode(evaluation.restore_order(prediction.predictions))
        evaluation.scores = score_translations(
            evaluation.hypotheses,
            references,
            sources=list(dataset["source"]) if "source" in columns else None,
            metrics=self.args.metrics,
            tokenize=self.bleu_tokenize,
        )
        return {name: evaluation.scores[name] for name in self.args.metrics}

    def decode(self, token_ids: ArrayLike) -> list[str]:
        """Turns token ids [B, T] into text; -100, the padding between batches, is skipped, too."""
        ids = np.asarray(token_ids)
        ids = np.where(ids < 0, self.tokenizers.target.pad_token_id, ids)
        return [_with_stripped_lines(text) for text in self.tokenizers.decode(ids)]

    def translate_dataset(
        self, dataset: Dataset, **generate_arguments: Any
    ) -> tuple[list[str], dict[str, Any]]:
        """Translates and scores a tokenized dataset, also if `args.predict_with_generate` is off.

        Returns:
            The hypotheses in dataset order; and `loss` and what `score_translations` returns for
            `args.metrics`.
        """
        generate_arguments.setdefault("num_beams", self.model.generation_config.num_beams or 1)
        predict_with_generate = self.args.predict_with_generate
        compute_metrics = self.compute_metrics
        self.args.predict_with_generate = True
        self.compute_metrics = self._compute_metrics
        try:
            output = self.predict(dataset, metric_key_prefix="test", **generate_arguments)
        finally:
            self.args.predict_with_generate = predict_with_generate
            self.compute_metrics = compute_metrics
        scores = {**self._evaluation.scores, "loss": (output.metrics or {}).get("test_loss")}
        return self._evaluation.hypotheses, scores

    # ---- saving and loading

    def describe_run(self) -> dict[str, Any]:
        """Returns the facts that a checkpoint keeps for a run that is resumed: the number of
        processes, training and validation set, teachers.
        """
        facts = {"processes": self.args.world_size, **self._data_facts}
        return {**facts, "teachers": list(self.teachers)} if self.teachers else facts

    @functools.cached_property
    def _data_facts(self) -> dict[str, Any]:
        training_set = validation_set = None
        if self.train_dataset is not None:
            training_set = describe_dataset(
                getattr(self.train_dataset, "sample", self.train_dataset)
            )
        if isinstance(self.eval_dataset, Dataset):
            validation_set = describe_dataset(self.eval_dataset, references=True)
        return {"training_set": training_set, "validation_set": validation_set}

    def _get_output_dir(self, trial: object) -> str:
        """Returns the staging folder: the library asks where a checkpoint is written."""
        return str(Path(self.args.output_dir, UNFINISHED))

    def _save_checkpoint(self, model: nn.Module, trial: object) -> None:
        """Saves a checkpoint in the staging folder, and names it when all processes have written
        theirs.

        Raises:
            RunError: If a loss or the weights are not finite, or if the disk is full or fails.
        """
        args = self.args
        self.guard.check(self.model.state_dict().values(), self.state)
        staging = Path(self._get_output_dir(trial))
        written = staging / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        checkpoint = staging.parent / written.name
        if args.should_save:
            shutil.rmtree(staging, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        try:
            super()._save_checkpoint(model, trial)
            if isinstance(self.train_dataset, TokenStream):
                write_stream_state(written, args, self._stream.state_dict())
            self._name_best_checkpoint()
            self.accelerator.wait_for_everyone()
            if args.should_save:
                self.state.save_to_json(str(written / TRAINER_STATE_NAME))
                facts = {"step": self.state.global_step, **self.describe_run()}
                name_checkpoint(written, checkpoint, facts)
            self.accelerator.wait_for_everyone()
        except (OSError, RuntimeError, SafetensorError) as error:
            shutil.rmtree(staging, ignore_errors=True)
            reason = str(error).partition("\n")[0]
            raise RunError(
                f"{checkpoint} could not be saved: {reason}; nothing was saved "
                f"since {last_checkpoint(args.output_dir)}. Make room, then start the same command "
                "again (without --overwrite) to go on from there."
            ) from error
        if self.is_world_process_zero():
            best = rank_checkpoints(args, self.state)[: args.keep_best]
            if self.state.best_model_checkpoint is not None:
                # Of equal scores the Trainer calls the first the best
                best.append(Path(self.state.best_model_checkpoint))
            rotate_checkpoints(args.output_dir, best)
        if args.push_to_hub:
            self._push_from_checkpoint(str(checkpoint))

    def _name_best_checkpoint(self) -> None:
        """Corrects the path of the best checkpoint, for which the library takes the staging
        folder.
        """
        if self.state.best_global_step and self.state.best_model_checkpoint:
            name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.best_global_step}"
            self.state.best_model_checkpoint = str(Path(self.args.output_dir, name))

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Saves model and tokenizers, and uploads them where the arguments ask for that."""
        folder = output_dir or self.args.output_dir
        # First: saving a model warns where its second tokenizer is missing
        self.tokenizers.save_pretrained(folder)
        super().save_model(folder, _internal_call)
        apply_umask(Path(folder).glob("*.safetensors"))

    def _load_best_model(self) -> None:
        if self.is_deepspeed_enabled:
            super()._load_best_model()
            return
        self._name_best_checkpoint()
        self._load_from_checkpoint(str(self.state.best_model_checkpoint))

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: nn.Module | None = None
    ) -> None:
        """Loads all weights; the library only warns of missing ones, and fails on tied ones of a
        sharded model.
        """
        load_weights(self.model, read_weights(resume_from_checkpoint))

    # ---- the Hub

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Uploads the public files of a checkpoint in the background; nothing when the library
        calls this, while the checkpoint is written.
        """
        is_written = Path(checkpoint_folder).parent.name != UNFINISHED
        is_asked = self.args.hub_strategy != HubStrategy.END
        if not (is_written and is_asked and self.is_world_process_zero()):
            return
        is_pushing = self.push_in_progress is not None and not self.push_in_progress.is_done()
        if is_pushing and not self.args.hub_always_push:
            return
        if not is_pushing:
            self.push_in_progress = PushInProgress()
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        job = push_in_background(
            Path(checkpoint_folder),
            str(self.hub_model_id),
            token=self.args.hub_token,
            revision=self.args.hub_revision,
            commit_message=f"Training in progress, step {self.state.global_step}",
        )
        self.push_in_progress.jobs.append(job)

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Saves the model and uploads its public files, which is waited for; see the library for
        the arguments.
        """
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        kwargs.setdefault("model_name", str(self.hub_model_id).split("/")[-1])
        self.create_model_card(**kwargs)
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


def _prepare_sharding(model: PreTrainedModel, has_batch_norm: bool) -> None:
    """Makes embeddings that share their weights one module, as FSDP allows a weight in only one of
    its groups.

    Raises:
        RecipeError: FSDP cannot shard the model.
    """
    embedding = model.get_input_embeddings()
    output = model.get_output_embeddings()
    model.set_input_embeddings(embedding)  # in all places of the model
    parameters = model.named_parameters(remove_duplicate=False)
    uses = sum(parameter is output.weight for _, parameter in parameters)
    # Every process needs the statistics of batch normalisation whole
    if not has_batch_norm and (uses <= 1 or output.weight is embedding.weight):
        return
    advice = ""
    if not has_batch_norm:
        advice = ", or set config.tie_word_embeddings to false or tokenizer.joint to true"
    raise RecipeError(
        f"FSDP cannot shard this {model.config.model_type} model: train it without FSDP "
        f"(accelerate launch --multi_gpu, or training.fsdp: false){advice}."
    )
