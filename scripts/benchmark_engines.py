#!/usr/bin/env python
# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Speed of engines that translate the same sentences with the same trained model."""

import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import sacrebleu
import torch
from csan_hf.pipelines.search import search
from measuring import Row, print_table
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from csan_hf.evaluation.loading import load_translation_model
from csan_hf.evaluation.translate import search_name
from csan_hf.hub.onnx import export_onnx
from csan_hf_cli import run
from csan_hf_runtime.generation import Generation
from csan_hf_runtime.graphs import Graphs
from csan_hf_runtime.text_files import read_lines

BATCHES = (1, 16, 64)
BEAMS = (1, 5)
MOST_TOKENS = 100  # of a translation
BASELINE = "transformers"
Sentences = Sequence[list[int]]
Translate = Callable[[Sentences, int], Sentences]
"""Translates a batch of tokens with a number of beams."""


def benchmark(
    model: str,
    /,
    *,
    input: Path,
    reference: Path,
    sentences: int = 200,
    threads: int = 1,
    rounds: int = 3,
) -> None:
    """Speed of engines that translate the same sentences with the same trained model, in one run:
    torch and ONNX Runtime (csan_hf_runtime).

        python scripts/benchmark_engines.py runs/plain --input test.de --reference test.en

    Each engine has a process of its own: after `generate` of torch, ONNX Runtime was a quarter
    slower in the same one. Sentences are tokens before the time is taken, sorted by length. Beam
    search ends with as many finished hypotheses as beams. Each round runs every engine once, in
    turn. The table has MB of weights; BLEU with the most beams in the largest
    batches; how many greedy translations in the largest batches are not those of the sentences
    alone; then sentences a second, by the median over the rounds, and in brackets how many
    translations are not those of transformers' `generate`.

    Args:
        model: directory of a checkpoint
        input: file of sentences, one on a line
        reference: file of their translations
        sentences: the first lines that are taken
        threads: of every engine
        rounds: times that each engine runs
    """
    transformers_logging.set_verbosity_error()
    network, tokenizers = load_translation_model(model, progress=False)
    ids_of_lines = tokenizers.source(list(read_lines(input))[:sentences]).input_ids
    references = list(read_lines(reference))[:sentences]
    pairs = sorted(zip(ids_of_lines, references, strict=True), key=lambda pair: len(pair[0]))
    sources = [ids for ids, _ in pairs]
    special = set(tokenizers.target.all_special_ids)
    measured: dict[tuple[int, int], dict[str, Measurement]] = {}
    with tempfile.TemporaryDirectory() as directory:
        started = {engine.name: engine for engine in engines(model, network, directory, threads)}
        for beams in BEAMS:
            for size in BATCHES:
                measured[beams, size] = measure(
                    started.values(), sources, size, beams, rounds, special
                )
        sizes = {name: megabytes(engine.folder) for name, engine in started.items()}
    rows: list[Row] = []
    for name, size in sizes.items():
        best = measured[BEAMS[-1], BATCHES[-1]][name].translations
        texts = tokenizers.target.batch_decode(best)
        alone = measured[BEAMS[0], 1][name].translations
        together = measured[BEAMS[0], BATCHES[-1]][name].translations
        bleu = sacrebleu.corpus_bleu(texts, [[text for _, text in pairs]]).score
        row: Row = {
            "engine": name,
            "MB": size,
            "BLEU": f"{bleu:.2f}",
            "not as alone": different(alone, together),
        }
        for (beams, count), measurements in measured.items():
            unlike = different(measurements[name].translations, measurements[BASELINE].translations)
            speed = len(sources) / measurements[name].seconds
            row[f"{search_name(beams)}, {count}"] = f"{speed:.1f} ({unlike})"
        rows.append(row)
    print(f"{threads} threads; torch {torch.__version__}; {len(sources)} sentences")
    print_table(rows)


class Engine(NamedTuple):
    """A process that translates with the weights in a folder."""

    name: str
    folder: Path
    process: ProcessPoolExecutor


class Measurement(NamedTuple):
    """Translations without special tokens, which some engines return, and the median of the seconds
    that they took.
    """

    translations: Sentences
    seconds: float


def measure(
    engines: Collection[Engine],
    sentences: Sentences,
    size: int,
    beams: int,
    rounds: int,
    special: Set[int],
) -> dict[str, Measurement]:
    """The translations by each engine, without `special` tokens."""
    translations: dict[str, Sentences] = {}
    times: dict[str, list[float]] = defaultdict(list)
    for _ in range(1 + rounds):
        for engine in engines:
            translated, seconds = engine.process.submit(_translate, sentences, size, beams).result()
            translations[engine.name] = translated
            times[engine.name].append(seconds)
    measurements = {}
    for name, (_, *seconds_by_round) in times.items():
        words = [[token for token in ids if token not in special] for ids in translations[name]]
        measurements[name] = Measurement(words, statistics.median(seconds_by_round))
    return measurements


def different(translations: Sentences, expected: Sentences) -> str:
    """How many translations differ."""
    return str(sum(ids != other for ids, other in zip(translations, expected, strict=True)))


def megabytes(folder: Path) -> float:
    """The size of a model's weights."""
    files = [*folder.glob("*.onnx"), *folder.glob("model.safetensors")]
    return sum(file.stat().st_size for file in files) / 1e6


def pad(batch: Sentences, padding: int) -> Tensor:
    """Tokens [B, J] of sentences."""
    rows = [torch.tensor(ids) for ids in batch]
    return pad_sequence(rows, batch_first=True, padding_value=padding)


def load_torch(checkpoint: str, threads: int, *, loop: Callable | None, dtype: str) -> Translate:
    """`generate`, with transformers' own search where `loop` is None."""
    torch.set_num_threads(threads)
    model, _ = load_translation_model(checkpoint, dtype=dtype, progress=False)
    model.generation_config.max_length = None
    padding = model.config.pad_token_id

    def translate(batch: Sentences, beams: int) -> Sentences:
        ids = pad(batch, padding)
        return model.generate(
            ids,
            attention_mask=(ids != padding).long(),
            num_beams=beams,
            early_stopping=beams > 1,
            max_new_tokens=MOST_TOKENS,
            custom_generate=loop,
        ).tolist()

    return translate


def load_onnx(directory: str, threads: int) -> Translate:
    """The runtime's search over exported graphs."""
    graphs = Graphs.from_directory(directory, threads=threads)
    settings = json.loads(Path(directory, "generation_config.json").read_text())
    generation = replace(Generation.from_dict(settings), early_stopping=True)
    padding = settings["pad_token_id"]

    def translate(batch: Sentences, beams: int) -> Sentences:
        ids = pad(batch, padding)
        hypotheses = replace(generation, num_beams=beams).search(
            graphs,
            ids.numpy(),
            mask=(ids != padding).long().numpy(),
            limits=np.full(len(batch), MOST_TOKENS + 1),
            with_scores=False,
        )
        return [best.tokens.tolist() for [best] in hypotheses]

    return translate


_loaded: list[Translate] = []  # in the engine's process


def start(load: Callable[[], Translate]) -> ProcessPoolExecutor:
    """A process with a loaded model."""
    return ProcessPoolExecutor(1, get_context("spawn"), initializer=_load, initargs=(load,))


def _load(load: Callable[[], Translate]) -> None:
    transformers_logging.set_verbosity_error()
    _loaded.append(load())


def _translate(sentences: Sentences, size: int, beams: int) -> tuple[Sentences, float]:
    """The translations of sentences in batches of a size, and the seconds they took."""
    translations: list[list[int]] = []
    began = time.perf_counter()
    for first in range(0, len(sentences), size):
        translations += _loaded[0](sentences[first : first + size], beams)
    return translations, time.perf_counter() - began


def engines(
    checkpoint: str, model: PreTrainedModel, directory: str, threads: int
) -> Iterator[Engine]:
    """Yields engines; exported models go to `directory`."""
    loops = {
        BASELINE: (None, "float32"),
        "csan_hf": (search, "float32"),
        "csan_hf, bfloat16": (search, "bfloat16"),
    }
    for name, (loop, dtype) in loops.items():
        process = start(partial(load_torch, checkpoint, threads, loop=loop, dtype=dtype))
        yield Engine(name, Path(checkpoint), process)
    for precision in ("float32", "int8"):
        graphs = export_onnx(model, Path(directory, f"onnx-{precision}"), precision=precision)
        process = start(partial(load_onnx, str(graphs), threads))
        yield Engine(f"ONNX Runtime, {precision}", graphs, process)


if __name__ == "__main__":
    sys.exit(run(benchmark, sys.argv[1:]))
