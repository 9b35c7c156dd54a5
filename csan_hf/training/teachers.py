# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Knowledge distillation by word (Hinton et al., 2015; Kim and Rush, EMNLP 2016): a student learns
its teachers' distribution over the next token beside the labels.

Targets are forced, so that the distributions do not depend on the student: they are computed once
and kept beside the prepared corpus, as are the translations that teachers make of sources without
any. Of each distribution the `teacher_top_k` largest probabilities are kept, divided by their sum.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from datasets import Dataset, Features, Value, concatenate_datasets
from transformers import PreTrainedConfig, PreTrainedModel

from csan_hf.alignment.aligned_pairs import padded_batch
from csan_hf.alignment.positions import fixed_positions
from csan_hf.data import TokenizerPair, describe_dataset, example_lengths
from csan_hf.data.prepared import kept_dataset
from csan_hf.evaluation.launched import on_main_process
from csan_hf.evaluation.loading import load_translation_model
from csan_hf.hub.model_card import public_name
from csan_hf.models.seq2seq_model import IGNORED_LABEL
from csan_hf.pipelines.ensemble import EnsembleForConditionalGeneration, check_member
from csan_hf_runtime.text_files import reading_folder_or_name
from csan_hf_runtime.texts import batches_by_length

from .arguments import TranslationTrainingArguments
from .errors import RecipeError, notify, refusing
from .loss import TaughtLabels
from .unlabelled import WEIGHT, Unlabelled, translated_pairs, with_weights

TOKENS = "teacher_tokens"
PROBABILITIES = "teacher_probabilities"
COLUMNS = {TOKENS: np.int32, PROBABILITIES: np.float16}
"""Column of taught pairs -> type of its array [target tokens, K], which is stored as bytes."""

_ROWS_AT_ONCE = 1_000
_ROWS_IN_PART = 20_000
"""Rows of a part of the cache; an interrupted run loses no more than one."""
_TOKENS_IN_BATCH = 4096
_LOGITS_IN_BATCH = 2**27


class Teacher(TypedDict):
    """The public name of a teacher, and a digest of its weights and configurations."""

    name: str
    sha256: str


# ---- distributions and translations, and the cache that keeps them


def teach(
    pairs: Dataset,
    args: TranslationTrainingArguments,
    tokenizers: TokenizerPair,
    *,
    cache: Path,
    teachers: list[Teacher] | None = None,
    unlabelled: Unlabelled | None = None,
) -> tuple[Dataset, list[Teacher]]:
    """Adds the distributions of `args.teachers` to training pairs, and pairs that they make of
    sources without translations, from the cache where they are there.

    Args:
        pairs: The tokenized training set.
        args: The arguments.
        tokenizers: The student's.
        cache: Folder of prepared corpora.
        teachers: Those of the checkpoint to resume from, which are loaded only if something is not
            in the cache. None: a new run.
        unlabelled: The sources without translations.

    Returns:
        The pairs with `COLUMNS`, and with weights if some are of `unlabelled`; and the teachers.

    Raises:
        RecipeError: A teacher cannot be loaded, has other vocabularies, or is not the one that the
            run began with; or they make no pair of `unlabelled`.
        OSError: The cache cannot be written.
    """
    longest = int(max(lengths.max() for lengths in example_lengths(pairs)))
    load = functools.cache(functools.partial(_load_teachers, args, tokenizers, longest))
    if teachers is None:
        teachers = on_main_process(lambda: load()[1])
    answers = _CachedAnswers(args, tokenizers, cache, load, teachers)
    taught = answers.with_distributions(pairs)
    if unlabelled is not None:
        translated = answers.translated(unlabelled, pairs)
        taught = with_weights(taught, answers.with_distributions(translated))
    return taught, teachers


@dataclass(frozen=True)
class _CachedAnswers:
    """Distributions and translations of the teachers, from the cache where they are there; see
    `teach`.

    Attributes:
        load: Returns the teachers as one model, with their digests.
        teachers: Those that the run began with.
    """

    args: TranslationTrainingArguments
    tokenizers: TokenizerPair
    cache: Path
    load: Callable[[], tuple[PreTrainedModel, list[Teacher]]]
    teachers: list[Teacher]

    def with_distributions(self, pairs: Dataset) -> Dataset:
        """Returns pairs with `COLUMNS`."""
        args = self.args
        parts = self._kept(
            _distributions,
            pairs.select_columns(["input_ids", "labels"]),
            key=describe_dataset(pairs)["sha256"],
            settings=[args.teacher_temperature, args.teacher_top_k, args.bf16],
            notice=f"Asking the teachers about {len(pairs):,} pairs",
            args=args,
        )
        return concatenate_datasets([pairs, concatenate_datasets(parts)], axis=1)

    def translated(self, unlabelled: Unlabelled, training_pairs: Dataset) -> Dataset:
        """Returns the `translated_pairs` of sources, no longer than training pairs."""
        limits = unlabelled.limits(training_pairs)
        n_best = self.args.teacher_n_best
        vocabulary = self.tokenizers.digest()
        parts = self._kept(
            translated_pairs,
            Dataset.from_dict({"source": unlabelled.sources}),
            key=unlabelled.describe()["sha256"],
            settings=[n_best, limits.length_limits, limits.max_length_ratio, vocabulary],
            notice=f"The teachers translate {len(unlabelled.sources):,} sources",
            features=Features({**training_pairs.features, WEIGHT: Value("float32")}),
            n_best=n_best,
            limits=limits,
        )
        if not parts:
            raise RecipeError(
                "data.unlabelled: no source gives a training pair. They stand in the corpus, "
                "have unknown letters, or they or their translations are longer than its "
                "pairs: leave it out."
            )
        pairs = concatenate_datasets(parts)
        notify(f"Sources without translations give {len(pairs):,} further training pairs.")
        return pairs

    def _kept(
        self,
        function: Callable[..., dict[str, list[Any]]],
        rows: Dataset,
        *,
        key: str,
        settings: list[Any],
        notice: str,
        features: Features | None = None,
        **options: Any,
    ) -> list[Dataset]:
        """Returns `rows.map(function)`, from the cache where it is there, in parts that have rows:
        an interrupted run goes on after the last one, and processes share the work.
        """
        digests = [teacher["sha256"] for teacher in self.teachers]

        def make(folder: Path, start: int, end: int) -> Dataset:
            model, loaded = self.load()
            if [teacher["sha256"] for teacher in loaded] != digests:
                raise RecipeError(
                    "training.teachers: their weights are not those that the run began with. Put "
                    "those back, or choose another --output_dir, or --overwrite to delete the run."
                )
            part = notice if end - start == len(rows) else f"{notice} ({start + 1:,} to {end:,})"
            notify(f"{part}; {self.cache} keeps what they say.")
            return rows.select(range(start, end)).map(
                function,
                batched=True,
                batch_size=_ROWS_AT_ONCE,
                remove_columns=rows.column_names,
                features=features,
                fn_kwargs={"model": model, "tokenizers": self.tokenizers, **options},
                cache_file_name=str(folder / "rows.arrow"),
                new_fingerprint=folder.name,  # or the library would pickle the model for one
                desc=notice,
            )

        def part_from(start: int) -> Dataset | None:
            end = min(start + _ROWS_IN_PART, len(rows))
            make_part = functools.partial(make, start=start, end=end)
            return kept_dataset(self.cache, [key, digests, settings, start, end], make_part)

        starts = range(0, len(rows), _ROWS_IN_PART)
        for start in starts[self.args.process_index :: self.args.world_size]:
            part_from(start)
        # All of them: those of other processes are waited for
        return [part for part in map(part_from, starts) if part is not None]


def check_teachers(names: Sequence[str]) -> None:
    """Raises `RecipeError` for what is no model, or one with code of its own; reads no weights."""
    for name in names:
        with _refusing(name), reading_folder_or_name(name, "model"):
            check_member(name)


def _refusing(name: str) -> AbstractContextManager[None]:
    return refusing(f"training.teachers: {name} cannot teach")


def _load_teachers(
    args: TranslationTrainingArguments, tokenizers: TokenizerPair, longest: int
) -> tuple[PreTrainedModel, list[Teacher]]:
    """Loads the teachers as one model, without running code of their own; texts have up to
    `longest` tokens.
    """
    models = []
    teachers = []
    for name in args.teachers or ():
        with _refusing(name), reading_folder_or_name(name, "model"):
            model, teacher_tokenizers = load_translation_model(
                name, device=str(args.device), progress=False
            )
            if _vocabularies(teacher_tokenizers) != _vocabularies(tokenizers):
                raise ValueError(
                    f"it has other vocabularies than this run. With tokenizer: {name} the student "
                    "has the same"
                )
            positions = fixed_positions(model)
            if positions is not None and longest > positions:
                raise ValueError(
                    f"it has positions for {positions} tokens, and a training text has {longest}: "
                    "lower data.max_source_length and data.max_target_length"
                )
            teachers.append(Teacher(name=str(public_name(name)), sha256=_digest(name, model)))
        models.append(model)
    if len(models) == 1:
        return models[0], teachers
    with refusing("training.teachers"):
        return EnsembleForConditionalGeneration.of(models), teachers


def _vocabularies(tokenizers: TokenizerPair) -> list[dict[str, int]]:
    return [tokenizers.source.get_vocab(), tokenizers.target.get_vocab()]


def _digest(name: str, model: PreTrainedModel) -> str:
    """A digest of a checkpoint's weights, configuration and generation config."""
    fields, _ = PreTrainedConfig.get_config_dict(name)
    fields = {field: value for field, value in fields.items() if not field.startswith("_")}
    generation: Any = model.generation_config
    settings = {**generation.to_diff_dict(), "transformers_version": None}
    content = json.dumps([fields, settings], sort_keys=True, default=str)
    digest = hashlib.sha256(content.encode())
    for weight, values in sorted(model.state_dict().items()):
        digest.update(weight.encode())
        digest.update(values.cpu().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


@torch.inference_mode()
def _distributions(
    rows: Mapping[str, Sequence[Sequence[int]]],
    model: PreTrainedModel,
    args: TranslationTrainingArguments,
    tokenizers: TokenizerPair,
) -> dict[str, list[bytes]]:
    """Computes `COLUMNS` of pairs."""
    sources = [torch.tensor(ids) for ids in rows["input_ids"]]
    labels = [torch.tensor(ids) for ids in rows["labels"]]
    lengths = [
        max(len(source), len(target)) for source, target in zip(sources, labels, strict=True)
    ]
    vocabulary_size = len(tokenizers.target)
    columns = {name: [b""] * len(labels) for name in COLUMNS}
    tokens_in_batch = min(_TOKENS_IN_BATCH, _LOGITS_IN_BATCH // vocabulary_size)
    for places in batches_by_length(lengths, tokens_in_batch):
        batch = padded_batch(
            [sources[place] for place in places],
            [labels[place] for place in places],
            tokenizers.source.pad_token_id or 0,
        )
        batch = {name: values.to(args.device) for name, values in batch.items()}
        with torch.autocast(args.device.type, torch.bfloat16, enabled=bool(args.bf16)):
            logits = model(**batch).logits[..., :vocabulary_size].float()
        distribution = (logits / args.teacher_temperature).softmax(dim=-1)
        if not distribution.isfinite().all():
            raise RecipeError(
                "training.teachers: their probabilities are no numbers: a weight of one is "
                "infinite, or training.teacher_temperature too small."
            )
        likeliest = distribution.topk(min(args.teacher_top_k, vocabulary_size))
        tensors = {
            TOKENS: likeliest.indices,
            PROBABILITIES: likeliest.values / likeliest.values.sum(dim=-1, keepdim=True),
        }
        for name, tensor in tensors.items():
            array = tensor.cpu().numpy().astype(COLUMNS[name])
            for row, place in zip(array, places, strict=True):
                columns[name][place] = row[: len(labels[place])].tobytes()
    return columns


def blank_distributions(rows: Mapping[str, Any], top_k: int) -> dict[str, list[bytes]]:
    """Returns `COLUMNS` of zeros for pairs, which cost the loss what those of teachers do."""
    numbers = [len(labels) * top_k for labels in rows["labels"]]
    columns = {}
    for name, kind in COLUMNS.items():
        size = np.dtype(kind).itemsize
        columns[name] = [bytes(number * size) for number in numbers]
    return columns


# ---- batches


@dataclass(frozen=True)
class TeacherCollator:
    """Collates taught pairs, and others as `collate` does.

    Args:
        collate: Makes a batch of the columns beside `COLUMNS`.
    """

    collate: Callable[[list[dict[str, Any]]], Any]

    def __call__(self, features: list[dict[str, Any]]) -> Any:
        """Returns the batch with `COLUMNS` [B, I, K], padded where its labels are."""
        if TOKENS not in features[0]:
            return self.collate(features)
        contents = {name: bytearray() for name in COLUMNS}
        pairs = []
        for feature in features:
            pair = dict(feature)
            for name, content in contents.items():
                content.extend(pair.pop(name))
            pairs.append(pair)
        batch = self.collate(pairs)
        is_label = batch["labels"].ne(IGNORED_LABEL)
        for name, content in contents.items():
            values = torch.from_numpy(np.frombuffer(content, COLUMNS[name]))
            values = values.reshape(int(is_label.sum()), -1)
            padded = values.new_zeros(*is_label.shape, values.shape[-1])
            padded[is_label] = values
            batch[name] = padded
        return batch


def take_teaching(inputs: dict[str, Any]) -> TaughtLabels:
    """Returns the labels of a model's inputs with `COLUMNS` and `WEIGHT`, which it takes out of the
    inputs if they are there.
    """
    labels = inputs["labels"]
    weights = inputs.pop(WEIGHT, None)
    return TaughtLabels(
        labels=labels,
        tokens=inputs.pop(TOKENS, None),
        probabilities=inputs.pop(PROBABILITIES, None),
        weights=None if weights is None else weights[:, None].expand_as(labels),
    )
