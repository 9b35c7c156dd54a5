# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Saving and loading in the trainer: a checkpoint gets its name when it is complete."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from datasets import Dataset
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, HubStrategy
from transformers.utils import PushInProgress

from csan_hf.data import describe_dataset
from csan_hf.hub.push import push_checkpoint, push_in_background
from csan_hf.text_files import apply_umask

from .checkpoints import SAVING, delete_checkpoint, last_complete_checkpoint, load_weights, read_weights, write_facts
from .evaluation import EvaluatingTrainer
from .stopping import RunError


class SavingTrainer(EvaluatingTrainer):
    """The part of `TranslationTrainer` that saves, loads and uploads."""

    push_in_progress: Any
    _data_facts: dict[str, Any] | None = None
    _is_saving = False

    def _get_output_dir(self, trial: Any) -> str:
        folder = super()._get_output_dir(trial)
        return str(Path(folder, SAVING)) if self._is_saving else folder

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Saves a checkpoint in a temporary folder, and renames it when all processes have written theirs.

        Raises:
            RunError: If the weights are not finite, which must not take the place of a good checkpoint; or if the
                disk is full or fails.
        """
        self.guard.check()
        self._check_weights()
        checkpoint = Path(self._get_output_dir(trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        folder = checkpoint.parent / SAVING
        if self.args.should_save:
            shutil.rmtree(folder, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        self._is_saving = True
        try:
            super()._save_checkpoint(model, trial)
            self._name_best_checkpoint()
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                written = folder / checkpoint.name
                self.state.save_to_json(str(written / TRAINER_STATE_NAME))
                write_facts(written, step=self.state.global_step, **self.describe_run())
                if checkpoint.exists():
                    delete_checkpoint(checkpoint)
                written.rename(checkpoint)
                folder.rmdir()
            self.accelerator.wait_for_everyone()
        except (OSError, RuntimeError, SafetensorError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            free = shutil.disk_usage(checkpoint.parent).free / 1e9
            raise RunError(
                f"{checkpoint} could not be saved: {str(error).splitlines()[0]} (free there: {free:.1f} GB); nothing "
                f"was saved since {self.last_checkpoint()}. Make room, then start the same command again (without "
                "--overwrite) to go on from there."
            ) from error
        finally:
            self._is_saving = False
        if self.args.push_to_hub:
            self._upload(checkpoint)

    def _name_best_checkpoint(self) -> None:
        """Corrects the library's path of the best checkpoint, which it takes while that is written."""
        if self.state.best_global_step and self.state.best_model_checkpoint:
            name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.best_global_step}"
            self.state.best_model_checkpoint = str(Path(self.args.output_dir, name))

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

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Keeps quiet about tied weights, which a checkpoint stores once."""
        tied = set(getattr(self.model, "all_tied_weights_keys", None) or {})
        missing = [key for key in load_result.missing_keys if key not in tied]
        super()._issue_warnings_after_load(type(load_result)(missing, load_result.unexpected_keys))

    def _load_best_model(self) -> None:
        """Loads the best checkpoint; a sharded model by `load_weights`, as the library fails on tied weights."""
        self._name_best_checkpoint()
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
        """Nothing: the library calls this while the checkpoint is written, and would upload the whole folder."""

    def _upload(self, checkpoint: Path) -> None:
        """Uploads the public files of a checkpoint in the background."""
        if not self.is_world_process_zero() or self.args.hub_strategy == HubStrategy.END:
            return
        pushing = self.push_in_progress is not None and not self.push_in_progress.is_done()
        if pushing and not self.args.hub_always_push:
            return
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        job = push_in_background(
            checkpoint,
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
