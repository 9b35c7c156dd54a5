#!/usr/bin/env python
# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Speed of engines that translate the same sentences with the same trained model, in one run:
torch, ONNX Runtime (csan_hf_runtime) and, for models that it can express, CTranslate2.

    python scripts/benchmark_engines.py runs/plain --input test.de --threads 1

Each engine has a process of its own: after `generate` of torch, ONNX Runtime was a quarter slower
in the same one. Sentences are tokens before the time is taken, sorted by length. Beam search is
done with as many ended hypotheses as beams, as in CTranslate2. Each round runs every engine once,
in turn. The table has sentences a second, by the median over the rounds, and in brackets how many
translations are not those of transformers' `generate`."""

import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from measuring import machine, make_parser, seconds_in_turn, seconds_of
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer
from transformers.utils import logging as transformers_logging

from csan_hf.evaluation.loading import load_translation_model
from csan_hf.evaluation.translate import search_name
from csan_hf.hub.onnx import export_onnx
from csan_hf.pipelines.search import search
from csan_hf_cli import script
from csan_hf_runtime.generation import Generation
from csan_hf_runtime.graphs import Graphs

BATCHES = (1, 16, 64)
BEAMS = (1, 5)
MOST_TOKENS = 100  # of a translation
BASELINE = "transformers"
Sentences = Sequence[list[int]]
Translate = Callable[[Sentences, int], Sentences]
"""Translates a batch of tokens with a number of beams."""


def load_torch(checkpoint: str, threads: int, *, loop: Callable | None, dtype: str) -> Translate:
    """`generate`, with transformers' own search where `loop` is None."""
    torch.set_num_threads(threads)
    model, _ = load_translation_model(checkpoint, dtype=dtype, progress=False)
    model.generation_config.max_length = None
    padding = model.config.pad_token_id

    def translate(batch: Sentences, beams: int) -> Sentences:
        rows = [torch.tensor(ids) for ids in batch]
        ids = pad_sequence(rows, batch_first=True, padding_value=padding)
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
        lengths = np.array([len(ids) for ids in batch])
        sources = np.full((len(batch), lengths.max()), padding)
        for row, ids in enumerate(batch):
            sources[row, : len(ids)] = ids
        hypotheses = replace(generation, num_beams=beams).search(
            graphs,
            sources,
            mask=(np.arange(lengths.max()) < lengths[:, None]).astype(np.int64),
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


class Engine:
    """A process with a loaded model.

    Args:
        load: Loads it.
    """

    def __init__(self, load: Callable[[], Translate]) -> None:
        self._process = ProcessPoolExecutor(
            1, get_context("spawn"), initializer=_load, initargs=(load,)
        )

    def translate(self, sentences: Sentences, size: int, beams: int) -> Sentences:
        """Translates sentences in batches of a size."""
        return self._process.submit(_translate, sentences, size, beams).result()


_loaded: list[Translate] = []  # in the engine's process


def _load(load: Callable[[], Translate]) -> None:
    transformers_logging.set_verbosity_error()
    _loaded.append(load())


def _translate(sentences: Sentences, size: int, beams: int) -> list[list[int]]:
    in_order = sorted(sentences, key=len)
    translations: list[list[int]] = []
    for start in range(0, len(in_order), size):
        translations += _loaded[0](in_order[start : start + size], beams)
    return translations


def engines(checkpoint: str, directory: Path, threads: int) -> Iterator[tuple[str, Engine]]:
    """Yields names and engines; exported models go to `directory`."""
    loops = {BASELINE: (None, "float32"), "csan_hf": (search, "float32")}
    for name, (loop, dtype) in {**loops, "csan_hf, bfloat16": (search, "bfloat16")}.items():
        yield name, Engine(partial(load_torch, checkpoint, threads, loop=loop, dtype=dtype))
    model, tokenizers = load_translation_model(checkpoint, progress=False)
    for precision in ("float32", "int8"):
        graphs = export_onnx(model, directory / f"onnx-{precision}", precision=precision)
        yield f"ONNX Runtime, {precision}", Engine(partial(load_onnx, str(graphs), threads))
    try:
        from csan_hf.hub.ctranslate2 import export_ctranslate2

        for precision in ("float32", "int8"):
            weights = export_ctranslate2(
                model,
                directory / f"ctranslate2-{precision}",
                tokenizers=tokenizers,
                quantization=precision,
            )
            engine = Engine(partial(load_ctranslate2, str(weights), threads))
            yield f"CTranslate2, {precision}", engine
    except (ImportError, ValueError) as error:
        print(f"Without CTranslate2: {error}")


def measure(
    named: Mapping[str, Engine],
    sentences: Sentences,
    *,
    size: int,
    beams: int,
    rounds: int,
    special: Set[int],
) -> dict[str, str]:
    """The cell of each engine: sentences a second, and translations that are not transformers'.

    `special` tokens are not compared: engines return some of them or none.
    """
    translations: dict[str, Sentences] = {}

    def translate(name: str) -> None:
        translations[name] = named[name].translate(sentences, size, beams)

    steps = {name: partial(translate, name) for name in named}
    times = seconds_in_turn(steps, rounds, seconds_of)
    cells = {}
    for name, seconds in times.items():
        pairs = zip(translations[name], translations[BASELINE], strict=True)
        different = sum(_text(ids, special) != _text(expected, special) for ids, expected in pairs)
        cells[name] = f"{len(sentences) / statistics.median(seconds):.1f} ({different})"
    return cells


def _text(ids: Sequence[int], special: Set[int]) -> list[int]:
    return [token for token in ids if token not in special]


@script()
def main(arguments: list[str]) -> None:
    parser = make_parser(__doc__, rounds=3)
    parser.add_argument("model", help="directory of a checkpoint")
    parser.add_argument("--input", required=True, help="file of sentences, one on a line")
    parser.add_argument(
        "--sentences", type=int, default=200, help="the first lines that are taken (default: 200)"
    )
    parser.add_argument("--threads", type=int, default=1, help="of every engine (default: 1)")
    args = parser.parse_args(arguments)
    transformers_logging.set_verbosity_error()
    tokenizer = AutoTokenizer.from_pretrained(args.model, trust_remote_code=False)
    lines = Path(args.input).read_text(encoding="utf-8").splitlines()[: args.sentences]
    sentences = tokenizer(lines).input_ids
    columns = {}
    with tempfile.TemporaryDirectory() as directory:
        named = dict(engines(args.model, Path(directory), args.threads))
        for beams in BEAMS:
            for size in BATCHES:
                columns[f"{search_name(beams)}, {size}"] = measure(
                    named,
                    sentences,
                    size=size,
                    beams=beams,
                    rounds=args.rounds,
                    special=set(tokenizer.all_special_ids),
                )
    print(f"\n{machine()}; {len(sentences)} sentences; sentences a second\n")
    print(f"| engine | {' | '.join(columns)} |\n| --- |{' ---: |' * len(columns)}")
    for name in named:
        print(f"| {name} | {' | '.join(column[name] for column in columns.values())} |")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
