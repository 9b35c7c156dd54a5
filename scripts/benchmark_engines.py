#!/usr/bin/env python
# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Speed of engines that translate the same sentences with the same trained model."""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import sacrebleu
import torch
from measuring import Row, print_table
from transformers.utils import logging as transformers_logging

from csan_hf import translation_pipeline
from csan_hf.evaluation.loading import load_translation_model
from csan_hf.evaluation.scores import search_name
from csan_hf.hub.onnx import export_onnx
from csan_hf_runtime.command_line import run
from csan_hf_runtime.text_files import open_parallel
from csan_hf_runtime.translator import TextTranslator

BATCHES = (1, 16, 64)
BEAMS = (1, 5)
BASELINE = "transformers"
Translate = Callable[[list[str], int], list[str]]
"""Translates a batch of sentences with a number of beams."""


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
    torch (transformers' `generate`, csan_hf's pipeline) and ONNX Runtime (csan_hf_runtime).

        python scripts/benchmark_engines.py runs/plain --input test.de --reference test.en

    Each engine has a process of its own: after `generate` of torch, ONNX Runtime was a quarter
    slower in the same one. Sentences are sorted by length. Each round runs every engine once, in
    turn. The table has MB of weights; BLEU with the most beams in the largest batches; how many
    greedy translations in the largest batches are not those of the sentences alone; then sentences
    a second, by the median over the rounds, and in brackets how many translations are not those of
    transformers' `generate`.

    Args:
        model: directory of a checkpoint
        input: file of sentences, one on a line
        reference: file of their translations
        sentences: the first lines that are taken
        threads: of every engine
        rounds: times that each engine runs
    """
    transformers_logging.set_verbosity_error()
    pairs = list(zip(*open_parallel(input, reference), strict=True))[:sentences]
    sources, references = zip(*sorted(pairs, key=lambda pair: len(pair[0])), strict=True)
    with tempfile.TemporaryDirectory() as directory:
        engines = start_engines(model, Path(directory), threads)
        measured = {
            (beams, size): measure(engines, list(sources), size, beams, rounds)
            for beams, size in product(BEAMS, BATCHES)
        }
        sizes = {name: megabytes(engine.folder) for name, engine in engines.items()}
    print(f"{threads} threads; torch {torch.__version__}; {len(sources)} sentences")
    rows: list[Row] = []
    for name, size in sizes.items():
        best = measured[BEAMS[-1], BATCHES[-1]][name].translations
        alone = measured[BEAMS[0], 1][name].translations
        together = measured[BEAMS[0], BATCHES[-1]][name].translations
        row: Row = {
            "engine": name,
            "MB": size,
            "BLEU": f"{sacrebleu.corpus_bleu(best, [references]).score:.2f}",
            "not as alone": different(alone, together),
        }
        for (beams, count), measurements in measured.items():
            measurement = measurements[name]
            unlike = different(measurement.translations, measurements[BASELINE].translations)
            speed = len(sources) / measurement.seconds
            row[f"{search_name(beams)}, {count}"] = f"{speed:.1f} ({unlike})"
        rows.append(row)
    print_table(rows)


class Engine(NamedTuple):
    """A process that translates with the weights in a folder."""

    folder: Path
    process: ProcessPoolExecutor


class Measurement(NamedTuple):
    """Translations, and the median of the seconds that they took."""

    translations: list[str]
    seconds: float


def start_engines(checkpoint: str, directory: Path, threads: int) -> dict[str, Engine]:
    """Starts the engines; exported models go to the directory."""
    loaders: dict[str, tuple[Path, Callable[[], Translate]]] = {}
    for name, dtype in (("csan_hf", "float32"), ("csan_hf, bfloat16", "bfloat16")):
        loaders[name] = (Path(checkpoint), partial(load_pipeline, checkpoint, threads, dtype))
    model, tokenizers = load_translation_model(checkpoint, progress=False)
    for precision in ("float32", "int8"):
        graphs = directory / precision
        export_onnx(model, graphs, precision=precision, tokenizers=tokenizers)
        loaders[f"ONNX Runtime, {precision}"] = (graphs, partial(load_onnx, graphs, threads))
    loaders = {BASELINE: (Path(checkpoint), partial(load_torch, checkpoint, threads)), **loaders}
    engines = {}
    for name, (folder, load) in loaders.items():
        process = ProcessPoolExecutor(1, get_context("spawn"), initializer=_load, initargs=(load,))
        engines[name] = Engine(folder, process)
    return engines


def measure(
    engines: dict[str, Engine], sentences: list[str], size: int, beams: int, rounds: int
) -> dict[str, Measurement]:
    """The translations by each engine, which runs once more before any time is taken."""
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    translations: dict[str, list[str]] = {}
    for _ in range(1 + rounds):
        for name, engine in engines.items():
            done = engine.process.submit(_translate, sentences, size, beams).result()
            translations[name] = done.translations
            seconds[name].append(done.seconds)
    return {
        name: Measurement(translations[name], statistics.median(times[1:]))
        for name, times in seconds.items()
    }


def different(translations: list[str], expected: list[str]) -> str:
    """How many translations differ."""
    return str(sum(map(str.__ne__, translations, expected)))


def megabytes(folder: Path) -> float:
    """The size of a model's weights."""
    files = [*folder.glob("*.onnx"), *folder.glob("model.safetensors")]
    return sum(file.stat().st_size for file in files) / 1e6


# ---- in an engine's process


def load_torch(checkpoint: str, threads: int) -> Translate:
    """transformers' `generate`, between its tokenizers."""
    torch.set_num_threads(threads)
    model, tokenizers = load_translation_model(checkpoint, device="cpu", progress=False)

    def translate(texts: list[str], beams: int) -> list[str]:
        batch = tokenizers.source(texts, padding=True, return_tensors="pt")
        tokens = model.generate(
            batch["input_ids"], attention_mask=batch["attention_mask"], num_beams=beams
        )
        return tokenizers.target.batch_decode(tokens, skip_special_tokens=True)

    return translate


def load_pipeline(checkpoint: str, threads: int, dtype: str) -> Translate:
    """csan_hf's pipeline."""
    torch.set_num_threads(threads)
    translator = translation_pipeline(
        checkpoint, device="cpu", dtype=dtype, trust_remote_code=False
    )

    def translate(texts: list[str], beams: int) -> list[str]:
        results = translator(texts, batch_size=len(texts), num_beams=beams)
        return [result["translation_text"] for result in results]

    return translate


def load_onnx(directory: Path, threads: int) -> Translate:
    """csan_hf_runtime, over exported graphs."""
    translator = TextTranslator.from_directory(directory, threads=threads)

    def translate(texts: list[str], beams: int) -> list[str]:
        return [best.text for [best] in translator.translate(texts, num_beams=beams)]

    return translate


_loaded: list[Translate] = []


def _load(load: Callable[[], Translate]) -> None:
    transformers_logging.set_verbosity_error()
    _loaded.append(load())


def _translate(sentences: list[str], size: int, beams: int) -> Measurement:
    """Translates sentences in batches of a size."""
    translations: list[str] = []
    began = time.perf_counter()
    for first in range(0, len(sentences), size):
        translations += _loaded[0](sentences[first : first + size], beams)
    return Measurement(translations, time.perf_counter() - began)


if __name__ == "__main__":
    sys.exit(run(benchmark, sys.argv[1:]))
