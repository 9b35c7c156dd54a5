#!/usr/bin/env python
# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Speed of engines that translate the same sentences with the same trained model."""

import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from measuring import Row, print_table
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer
from transformers.utils import logging as transformers_logging

from csan_hf.evaluation.loading import load_translation_model
from csan_hf.evaluation.translate import search_name
from csan_hf.hub.onnx import export_onnx
from csan_hf.pipelines.search import search
from csan_hf_cli import run
from csan_hf_runtime.generation import Generation
from csan_hf_runtime.graphs import Graphs

BATCHES = (1, 16, 64)
BEAMS = (1, 5)
MOST_TOKENS = 100  # of a translation
BASELINE = "transformers"
Sentences = Sequence[list[int]]
Translate = Callable[[Sentences, int], Sentences]
"""Translates a batch of tokens with a number of beams."""


def benchmark(
    model: str, /, *, input: Path, sentences: int = 200, threads: int = 1, rounds: int = 3
) -> None:
    """Speed of engines that translate the same sentences with the same trained model, in one run:
    torch, ONNX Runtime (csan_hf_runtime) and, for models that it can express, CTranslate2.

        python scripts/benchmark_engines.py runs/plain --input test.de

    Each engine has a process of its own: after `generate` of torch, ONNX Runtime was a quarter
    slower in the same one. Sentences are tokens before the time is taken, sorted by length. Beam
    search is done with as many ended hypotheses as beams, as in CTranslate2. Each round runs every
    engine once, in turn. The table has sentences a second, by the median over the rounds, and in
    brackets how many translations are not those of transformers' `generate`.

    Args:
        model: directory of a checkpoint
        input: file of sentences, one on a line
        sentences: the first lines that are taken
        threads: of every engine
        rounds: times that each engine runs
    """
    transformers_logging.set_verbosity_error()
    tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    lines = input.read_text(encoding="utf-8").splitlines()[:sentences]
    tokens = sorted(tokenizer(lines).input_ids, key=len)
    special = set(tokenizer.all_special_ids)
    with tempfile.TemporaryDirectory() as directory:
        processes = dict(engines(model, Path(directory), threads))
        rows: dict[str, Row] = {name: {"engine": name} for name in processes}
        for beams in BEAMS:
            for size in BATCHES:
                cells = measure(processes, tokens, size, beams, rounds, special)
                for name, cell in cells.items():
                    rows[name][f"{search_name(beams)}, {size}"] = cell
    print(f"{threads} threads; torch {torch.__version__}; {len(lines)} sentences")
    print_table(rows.values())


def measure(
    processes: Mapping[str, ProcessPoolExecutor],
    sentences: Sentences,
    size: int,
    beams: int,
    rounds: int,
    special: Set[int],
) -> dict[str, str]:
    """The cell of each engine: sentences a second, and translations that are not transformers'.

    `special` tokens are not compared: engines return some of them or none.
    """
    translations: dict[str, Sentences] = {}
    times: dict[str, list[float]] = defaultdict(list)
    for _ in range(1 + rounds):
        for name, process in processes.items():
            translated, seconds = process.submit(_translate, sentences, size, beams).result()
            translations[name] = [
                [token for token in ids if token not in special] for ids in translated
            ]
            times[name].append(seconds)
    cells = {}
    for name, (_, *seconds_by_round) in times.items():
        pairs = zip(translations[name], translations[BASELINE], strict=True)
        different = sum(ids != expected for ids, expected in pairs)
        speed = len(sentences) / statistics.median(seconds_by_round)
        cells[name] = f"{speed:.1f} ({different})"
    return cells


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


def load_ctranslate2(directory: str, threads: int) -> Translate:
    """CTranslate2's own search over an exported model."""
    import ctranslate2

    translator = ctranslate2.Translator(directory, intra_threads=threads, inter_threads=1)
    tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=False)

    def translate(batch: Sentences, beams: int) -> Sentences:
        translations = translator.translate_batch(
            [tokenizer.convert_ids_to_tokens(ids) for ids in batch],
            beam_size=beams,
            max_batch_size=len(batch),
            max_decoding_length=MOST_TOKENS,
        )
        tokens = [translation.hypotheses[0] for translation in translations]
        return [tokenizer.convert_tokens_to_ids(row) for row in tokens]

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
    checkpoint: str, directory: Path, threads: int
) -> Iterator[tuple[str, ProcessPoolExecutor]]:
    """Yields names and processes of engines; exported models go to `directory`."""
    loops = {
        BASELINE: (None, "float32"),
        "csan_hf": (search, "float32"),
        "csan_hf, bfloat16": (search, "bfloat16"),
    }
    for name, (loop, dtype) in loops.items():
        yield name, start(partial(load_torch, checkpoint, threads, loop=loop, dtype=dtype))
    model, tokenizers = load_translation_model(checkpoint, progress=False)
    for precision in ("float32", "int8"):
        graphs = export_onnx(model, directory / f"onnx-{precision}", precision=precision)
        yield f"ONNX Runtime, {precision}", start(partial(load_onnx, str(graphs), threads))
    try:
        from csan_hf.hub.ctranslate2 import export_ctranslate2

        for precision in ("float32", "int8"):
            weights = export_ctranslate2(
                model,
                directory / f"ctranslate2-{precision}",
                tokenizers=tokenizers,
                quantization=precision,
            )
            load = partial(load_ctranslate2, str(weights), threads)
            yield f"CTranslate2, {precision}", start(load)
    except (ImportError, ValueError) as error:
        print(f"Without CTranslate2: {error}")


if __name__ == "__main__":
    sys.exit(run(benchmark, sys.argv[1:]))
