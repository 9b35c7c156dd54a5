# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The systems of a report: checkpoints, or what other systems have translated."""

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from transformers import PreTrainedModel
from transformers.utils import logging

from csan_hf.data import TokenizerPair
from csan_hf.data.documents import read_translations
from csan_hf.evaluation.corpus_translation import best_texts
from csan_hf.evaluation.loading import load_engine
from csan_hf.evaluation.scores import search_name
from csan_hf.evaluation.significance import PairedTest
from csan_hf.pipelines.torch_engine import TorchEngine
from csan_hf_runtime.text_files import counted, open_lines
from csan_hf_runtime.texts import LanguageTags
from csan_hf_runtime.translator import TextTranslator

logger = logging.get_logger(__name__)
_HUB_NAME = re.compile(r"(?!-)([\w-]+|[\w-][\w.-]*/[\w.-]+)")


@dataclass
class ScoreCell:
    """A score in the table: with its 95% interval and the test of the system against the baseline.

    `adjusted` is the test's p-value, adjusted for the systems tested (Holm).
    """

    score: float
    interval: tuple[float, float]
    test: PairedTest | None = None
    adjusted: float | None = None


@dataclass(frozen=True)
class WordAlignment:
    """How strongly words are related, integers from -99 to 99 [target words][source words], and
    links.

    A link is (source word, target word), counted from 0, to the best source word: the rounded
    matrix does not show it."""

    matrix: list[list[int]]
    links: list[tuple[int, int]]


@dataclass
class System:
    """A system, its translations of the test set, and what a report says of them.

    Attributes:
        name: What the report calls it.
        runs: Its translations, one list or `csan_hf_runtime.text_files.TextFile` for each training
            seed.
        model: The model of the first run, if it is a checkpoint that gives attention.
        tokenizers: The model's.
        target_language: That of the translations, if it was chosen among several of the model.
        search: How it translated, if it is a checkpoint: greedy, beam 5.
        scores: A cell for each metric.
        segment_scores: For each metric the score of every sentence of the first run.
        alignments: By number of the sentence, its alignment.
    """

    name: str
    runs: list[Collection[str]]
    model: PreTrainedModel | None = None
    tokenizers: TokenizerPair | None = None
    target_language: str | None = None
    search: str = ""
    scores: list[ScoreCell] = field(default_factory=list)
    segment_scores: list[np.ndarray] = field(default_factory=list)
    alignments: dict[int, WordAlignment] = field(default_factory=dict)


def load_systems(
    arguments: Sequence[str],
    sources: Collection[str],
    *,
    documents_of: Path | None = None,
    device: str | None = None,
    trust_remote_code: bool = False,
    progress: bool = False,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    num_beams: int | None = None,
) -> list[System]:
    """Reads the translations of systems, or makes them; files are checked before a checkpoint
    translates.

    Args:
        arguments: `[NAME=]PATH[,PATH…]` each. A path is a file with a translation a line, or a
            checkpoint (a folder, or a name on the Hub), which translates the sources. Several paths
            are the same system trained with several seeds.
        sources: The source sentences, or documents.
        documents_of: The file that has the documents; None = sources are sentences.
        device: torch device for checkpoints; None = the accelerator if there is one.
        trust_remote_code: Whether code in a checkpoint may run.
        progress: Shows bars on standard error.
        src_lang: Language of the sources, for checkpoints of several.
        tgt_lang: Language of the translations, likewise.
        num_beams: Beams of checkpoints; None = each one's own.

    Raises:
        ValueError: If a file has another number of lines than there are sources.
        OSError: If there is no such file or checkpoint.
    """
    named = [name_and_paths(argument) for argument in arguments]
    files: dict[str, Collection[str]] = {}
    for _, paths in named:
        for path in paths:
            if not os.path.exists(path) and not _HUB_NAME.fullmatch(path):
                raise FileNotFoundError(f"{path}: no such file or checkpoint")
            if os.path.exists(path) and not os.path.isdir(path):  # or a pipe
                if documents_of is not None:
                    files[path] = read_translations(path, documents_of)
                    continue
                files[path] = open_lines(path)
                if len(files[path]) != len(sources):
                    raise ValueError(
                        f"{path} has {counted(len(files[path]), 'line')} for "
                        f"{counted(len(sources), 'source')}: it must have as many."
                    )
    systems = []
    for name, paths in named:
        system = System(name, [])
        for path in paths:
            if path in files:
                system.runs.append(files[path])
                continue
            engine = load_engine(
                path, device=device, trust_remote_code=trust_remote_code, progress=progress
            )
            if not system.runs:
                system.target_language = tgt_lang
                if isinstance(engine, TorchEngine) and engine.gives_attention:
                    system.model = engine.model
                    system.tokenizers = engine.tokenizers(src_lang, tgt_lang)
                else:
                    logger.warning(f"{name}: {path} gives no attention and is shown without it.")
                _, generation = engine.defaults(src_lang, tgt_lang)
                system.search = search_name(num_beams or generation.num_beams)
            windows = TextTranslator(engine).stream(
                list(sources),
                progress=progress,
                split_sentences="never",
                source_lang=src_lang,
                target_lang=tgt_lang,
                num_beams=num_beams,
            )
            system.runs.append(list(best_texts(windows)))
        systems.append(system)
    return systems


def tagged_sources(system: System, sources: Sequence[str]) -> list[str]:
    """The sources of a checkpoint with the tags of its target language, as its encoder reads them.

    A blank source has none, nor has any of a model without tags."""
    tags = LanguageTags(system.tokenizers.source.get_added_vocab() if system.tokenizers else ())
    tagged = []
    for source in sources:
        text, tag = source, ""
        if source.strip():
            text, tag = tags.mark(source, "", system.target_language)
        tagged.append(tag + text)
    return tagged


def check_names(names: list[str], baseline: str | None = None) -> None:
    """Raises `ValueError` if two systems have one name, or the baseline is none of them."""
    if baseline is not None and baseline not in names:
        raise ValueError(f"The baseline {baseline} is none of the systems {', '.join(names)}.")
    if len({*names}) < len(names):
        raise ValueError(
            f"Two systems have one name among {', '.join(names)}: write NAME=PATH to tell them "
            "apart."
        )


def name_and_paths(argument: str) -> tuple[str, list[str]]:
    """Splits `[NAME=]PATH[,PATH…]` into name and paths; "=" and "," may also be part of an existing
    file's name.
    """
    name = ""
    listed = argument
    if "=" in argument and not os.path.exists(argument):
        name, _, listed = argument.partition("=")
    paths = [listed] if os.path.exists(listed) else listed.split(",")
    first = Path(paths[0])
    return name or first.name or first.resolve().name, paths
