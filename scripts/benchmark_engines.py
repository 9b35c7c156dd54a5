#!/usr/bin/env python
# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Speed of engines that translate the same sentences with the same trained model, in one run:
torch, ONNX Runtime (csan_hf_runtime) and, for models that it can express, CTranslate2.

    python scripts/benchmark_engines.py runs/plain --input test.de --threads 1

Sentences are tokens before the time is taken, sorted by length. Each round runs every engine once,
in turn. The table has sentences a second, by the median over the rounds, and in brackets how many
translations are not those of transformers' `generate`."""

import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import machine, make_parser, seconds_in_turn, seconds_of
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from csan_hf.data import TokenizerPair
from csan_hf.evaluation.loading import load_translation_model
from csan_hf.evaluation.translate import search_name
from csan_hf.hub.onnx import export_onnx
from csan_hf.pipelines.search import search
from csan_hf_cli import script
from csan_hf_runtime.generation import Generation
from csan_hf_runtime.graphs import Graphs

BATCHES = (1, 16, 64)
BEAMS = (1, 5)
TORCH = "transformers"
Sentences = Sequence[list[int]]
Engine = Callable[[Sentences, int], Sentences]
"""Translates a batch of tokens with a number of beams."""


def torch_engine(model: PreTrainedModel, loop: Callable | None, longest: int) -> Engine:
    """`generate`, with transformers' own search where `loop` is None."""
    padding = model.config.pad_token_id

    def translate(batch: Sentences, beams: int) -> Sentences:
        rows = [torch.tensor(ids) for ids in batch]
        ids = pad_sequence(rows, batch_first=True, padding_value=padding)
        return model.generate(
            ids,
            attention_mask=(ids != padding).long(),
            num_beams=beams,
            max_new_tokens=longest,
            do_sample=False,
            custom_generate=loop,
        ).tolist()

    return translate


def onnx_engine(directory: Path, settings: dict[str, Any], threads: int, longest: int) -> Engine:
    """The runtime's search over exported graphs; `settings` are those of the generation config."""
    graphs = Graphs.from_directory(directory, threads=threads)
    generation = Generation.from_dict(settings)
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
            limits=np.full(len(batch), longest + 1),
            with_scores=False,
        )
        return [best.tokens.tolist() for [best] in hypotheses]

    return translate


def ctranslate2_engine(
    directory: Path, tokenizers: TokenizerPair, threads: int, longest: int
) -> Engine:
    """CTranslate2's own search over an exported model."""
    import ctranslate2

    translator = ctranslate2.Translator(str(directory), intra_threads=threads, inter_threads=1)

    def translate(batch: Sentences, beams: int) -> Sentences:
        translations = translator.translate_batch(
            [tokenizers.source.convert_ids_to_tokens(ids) for ids in batch],
            beam_size=beams,
            max_batch_size=len(batch),
            max_decoding_length=longest,
        )
        tokens = [translation.hypotheses[0] for translation in translations]
        return [tokenizers.target.convert_tokens_to_ids(row) for row in tokens]

    return translate


def engines(
    model: PreTrainedModel,
    tokenizers: TokenizerPair,
    directory: Path,
    threads: int,
    longest: int,
) -> Iterator[tuple[str, Engine]]:
    """Yields names and engines, with their files in `directory`."""
    yield TORCH, torch_engine(model, None, longest)
    yield "csan_hf", torch_engine(model, search, longest)
    yield "csan_hf, bfloat16", torch_engine(deepcopy(model).bfloat16(), search, longest)
    settings = model.generation_config.to_dict()
    for precision in ("float32", "int8"):
        graphs = export_onnx(model, directory / f"onnx-{precision}", precision=precision)
        yield f"ONNX Runtime, {precision}", onnx_engine(graphs, settings, threads, longest)
    try:
        from csan_hf.hub.ctranslate2 import export_ctranslate2

        for precision in ("float32", "int8"):
            weights = export_ctranslate2(
                model,
                directory / f"ctranslate2-{precision}",
                tokenizers=tokenizers,
                quantization=precision,
            )
            engine = ctranslate2_engine(weights, tokenizers, threads, longest)
            yield f"CTranslate2, {precision}", engine
    except (ImportError, ValueError) as error:
        print(f"Without CTranslate2: {error}")


def translate_all(engine: Engine, sentences: Sentences, size: int, beams: int) -> list[list[int]]:
    """Translates batch by batch."""
    in_order = sorted(sentences, key=len)
    translations: list[list[int]] = []
    for start in range(0, len(in_order), size):
        translations += engine(in_order[start : start + size], beams)
    return translations


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
        translations[name] = translate_all(named[name], sentences, size, beams)

    steps = {name: partial(translate, name) for name in named}
    times = seconds_in_turn(steps, rounds, partial(seconds_of, device="cpu"))
    cells = {}
    for name, seconds in times.items():
        pairs = zip(translations[name], translations[TORCH], strict=True)
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
    parser.add_argument(
        "--longest", type=int, default=100, help="most tokens of a translation (default: 100)"
    )
    args = parser.parse_args(arguments)
    transformers_logging.set_verbosity_error()
    torch.set_num_threads(args.threads)
    model, tokenizers = load_translation_model([args.model], progress=False)
    lines = Path(args.input).read_text(encoding="utf-8").splitlines()[: args.sentences]
    sentences = tokenizers.source(lines).input_ids
    special = {model.config.decoder_start_token_id, *tokenizers.target.all_special_ids}
    columns = {}
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        named = dict(engines(model, tokenizers, folder, args.threads, args.longest))
        for beams in BEAMS:
            for size in BATCHES:
                columns[f"{search_name(beams)}, {size}"] = measure(
                    named,
                    sentences,
                    size=size,
                    beams=beams,
                    rounds=args.rounds,
                    special=special,
                )
    print(f"\n{machine('cpu')}; {len(sentences)} sentences; sentences a second\n")
    print(f"| engine | {' | '.join(columns)} |\n| --- |{' ---: |' * len(columns)}")
    for name in named:
        print(f"| {name} | {' | '.join(column[name] for column in columns.values())} |")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
