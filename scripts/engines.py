# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Engines that translate with a plain Transformer, and with a 2D-CSAN where they can, in one run.

Every sentence has 25 tokens and every translation 24, with random weights. Each round runs every
engine once, in turn; the table has the median over the rounds of the time of transformers' Marian
divided by the engine's. Ahead of that all engines in float32 must find the same tokens greedily."""

import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import Step, machine, seconds_in_turn, seconds_of, speed_ratio
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from csan_hf.data import TokenizerPair
from csan_hf.evaluation.translate import search_name
from csan_hf.hub.onnx import export_onnx
from csan_hf.pipelines.search import search
from csan_hf_runtime.generation import Generation
from csan_hf_runtime.graphs import Graphs

SOURCE = 25  # tokens
TARGET = 24
BATCHES = (1, 16, 64)
BEAMS = (1, 5)
LEAST_SECONDS = 0.3  # a round repeats what takes less
Run = Callable[[Tensor, int], Any]


class Engines:
    """All engines, with files in a temporary directory.

    Args:
        build: Makes the model of a name in `benchmark.LOCALITIES`, or Marian.
        threads: Threads of each engine.
        directory: For exported models.
    """

    def __init__(self, build: Callable[[str], Any], threads: int, directory: Path) -> None:
        torch.set_num_threads(threads)
        self.directory = directory
        self.threads = threads
        self.marian = build("MarianMTModel").eval()
        self.models = {
            "CSAN": build("CSAN, locality off").eval(),
            "2D-CSAN": build("2D-CSAN (3×11)").eval(),
        }
        for model in (self.marian, *self.models.values()):
            for weight in model.parameters():
                weight.data.mul_(4.0 if weight.dim() > 1 else 1.0)  # so that translations differ
            model.final_logits_bias[:, model.config.eos_token_id] = -1e9  # and none ends early

    def runs(self) -> Iterator[tuple[str, Run]]:
        """Names, and what translates sources [B, 25] with a number of beams."""
        yield "Marian, transformers", self._generate(self.marian, None)
        for name, model in self.models.items():
            yield f"{name}, transformers", self._generate(model, None)
            yield f"{name}, csan_hf", self._generate(model, search)
            yield f"{name}, csan_hf, bfloat16", self._generate(deepcopy(model).bfloat16(), search)
            for precision in ("float32", "int8"):
                graphs = export_onnx(
                    model, self.directory / f"{name} {precision}", precision=precision
                )
                yield f"{name}, ONNX Runtime, {precision}", self._runtime(graphs)
        for precision in ("float32", "int8"):
            yield f"CSAN, CTranslate2, {precision}", self._ctranslate2(precision)

    @staticmethod
    def _generate(model: PreTrainedModel, loop: object) -> Run:
        options = {"max_new_tokens": TARGET, "do_sample": False, "custom_generate": loop}
        return lambda ids, beams: model.generate(ids, num_beams=beams, **options).tolist()

    def _runtime(self, directory: Path) -> Run:
        graphs = Graphs.from_directory(directory, threads=self.threads)
        settings = {"decoder_start_token_id": 0, "eos_token_id": self.marian.config.eos_token_id}

        def run(ids: Tensor, beams: int) -> list[list[int]]:
            sources = ids.numpy()
            found = Generation(**settings, num_beams=beams).search(
                graphs,
                sources,
                mask=np.ones_like(sources),
                limits=np.full(len(sources), TARGET + 1),
                with_scores=False,
            )
            return [[0, *hypotheses[0].tokens.tolist()] for hypotheses in found]

        return run

    def _ctranslate2(self, precision: str) -> Run:
        import ctranslate2

        from csan_hf.hub.ctranslate2 import export_ctranslate2

        size = self.marian.config.vocab_size
        words = Tokenizer(WordLevel({str(number): number for number in range(size)}))
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
        directory = export_ctranslate2(
            self.models["CSAN"],
            self.directory / f"ctranslate2 {precision}",
            tokenizers=TokenizerPair(tokenizer, tokenizer),
            quantization=precision,
        )
        translator = ctranslate2.Translator(
            str(directory), intra_threads=self.threads, inter_threads=1
        )

        def run(ids: Tensor, beams: int) -> list[list[int]]:
            tokens = [list(map(str, row)) for row in ids.tolist()]
            translations = translator.translate_batch(
                tokens,
                beam_size=beams,
                max_batch_size=len(tokens),
                max_decoding_length=TARGET,
                min_decoding_length=0,
            )
            return [[0, *map(int, translation.hypotheses[0])] for translation in translations]

        return run


def print_engines(
    build: Callable[[str], Any], rounds: int, threads: Sequence[int], only: str | None
) -> None:
    """Prints a table of all engines for each number of threads."""
    for count in threads:
        with tempfile.TemporaryDirectory() as directory:
            runs = {
                name: run
                for name, run in Engines(build, count, Path(directory)).runs()
                if not only or only in name or name.startswith("Marian")
            }
            check(runs, sources(4))
            print(f"\n{machine('cpu')}; times Marian's speed (sentences a second)\n")
            columns = {
                f"{search_name(beams)}, {batch}": speeds(runs, sources(batch), beams, rounds)
                for beams in BEAMS
                for batch in BATCHES
            }
            print(f"| engine | {' | '.join(columns)} |\n| --- |{' ---: |' * len(columns)}")
            for name in runs:
                cells = []
                for column in columns.values():
                    speed, rate = column[name]
                    cells.append(f"{speed:.2f} ({rate:,.0f})")
                print(f"| {name} | {' | '.join(cells)} |", flush=True)


def sources(batch: int) -> Tensor:
    """Sentences [B, 25]."""
    return torch.randint(2, 8000, (batch, SOURCE), generator=torch.Generator().manual_seed(1))


def check(runs: dict[str, Run], ids: Tensor) -> None:
    """Raises ValueError unless the engines in float32 give the tokens of transformers' loop."""
    for name, run in runs.items():
        exact = runs.get(f"{name.split(',')[0]}, transformers")
        if "int8" not in name and "bfloat16" not in name and exact and run(ids, 1) != exact(ids, 1):
            raise ValueError(
                f"{name} gives other tokens than transformers: {run(ids, 1)}, {exact(ids, 1)}"
            )


def speeds(
    runs: dict[str, Run], ids: Tensor, beams: int, rounds: int
) -> dict[str, tuple[float, float]]:
    """Of each engine the median speed, Marian's = 1, and sentences a second."""
    steps = {name: partial(run, ids, beams) for name, run in runs.items()}
    baseline = "Marian, transformers"
    repeats = int(LEAST_SECONDS / max(seconds_of(steps[baseline], "cpu"), 1e-3)) + 1

    def seconds(step: Step) -> float:
        return seconds_of(lambda: [step() for _ in range(repeats)], "cpu") / repeats

    times = seconds_in_turn(steps, rounds, seconds)
    return {
        name: (speed_ratio(times[baseline], taken), len(ids) / statistics.median(taken))
        for name, taken in times.items()
    }
