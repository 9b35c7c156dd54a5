# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A tiny corpus, tokenizers and models for the training tests."""

import pytest
import torch
from datasets import DatasetDict
from system.training.tiny_runs import leave_out_pictures, tiny_marian

from csan_hf.data import (
    DataArguments,
    TokenizerArguments,
    load_translation_dataset,
    tokenize_dataset,
    train_tokenizers,
)
from csan_hf.training import TranslationTrainer, TranslationTrainingArguments


@pytest.fixture(autouse=True)
def one_thread():
    """Sums in another order give other last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", autouse=True)
def pictures():
    """Where pictures would have been drawn; drawing takes longer than these trainings."""
    with pytest.MonkeyPatch.context() as patch:
        yield leave_out_pictures(patch)


@pytest.fixture(scope="session")
def data_arguments() -> DataArguments:
    return DataArguments(dataset="numbers", train_size=300, validation_size=24, test_size=20)


@pytest.fixture(scope="session")
def text(data_arguments) -> DatasetDict:
    return load_translation_dataset(data_arguments)[0]


@pytest.fixture(scope="session")
def tokenizers(text):
    return train_tokenizers(text["train"], TokenizerArguments(400))


@pytest.fixture(scope="session")
def tokenized(text, tokenizers, data_arguments) -> DatasetDict:
    return tokenize_dataset(text, tokenizers, data_arguments)[0]


@pytest.fixture
def make_trainer(tmp_path, tokenizers, tokenized):
    """Builds a trainer in its own folder."""

    def build(
        folder="run", *, model=None, train=None, validation=None, **arguments
    ) -> TranslationTrainer:
        defaults = {
            "max_steps": 6,
            "eval_steps": 3,
            "logging_steps": 1,
            "max_tokens": 1000,
            "warmup_steps": 2,
            "learning_rate": 1e-2,
            "report_to": "none",
            "bf16": False,
            "use_cpu": True,
            "disable_tqdm": True,
        }
        if model is None:
            model = tiny_marian(len(tokenizers.source))
        return TranslationTrainer(
            model,
            TranslationTrainingArguments(
                output_dir=str(tmp_path / folder), **{**defaults, **arguments}
            ),
            tokenizers=tokenizers,
            train_dataset=tokenized["train"] if train is None else train,
            eval_dataset=tokenized["validation"] if validation is None else validation,
        )

    return build
