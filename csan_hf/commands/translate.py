# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""`csan-hf translate` by torch; csan_hf_cli has the command."""

from collections.abc import Generator, Iterable
from contextlib import nullcontext
from typing import Any

from transformers import set_seed

from csan_hf.evaluation import Hypothesis, n_best_stream
from csan_hf.evaluation.loading import launched_processes, load_translation_model
from csan_hf.evaluation.pool import TranslationPool
from csan_hf.pipelines.terms import Terms


def translate_windows(
    model: list[str],
    sentences: Iterable[str | None],
    *,
    source_lang: str | None,
    target_lang: str | None,
    num_beams: int | None,
    n_best: int,
    truncation: bool,
    check_coverage: bool,
    terms: str | None,
    sample: bool,
    seed: int,
    processes: int | None,
    progress: bool,
    device: str | None,
    dtype: str,
    trust_remote_code: bool,
    **options: Any,
) -> Generator[list[list[Hypothesis]]]:
    """Loads what translates and yields the hypotheses of a window of sentences at a time.

    The arguments are those of `csan-hf translate`; further options go to `n_best_stream`.
    """
    glossary = None if terms is None else Terms.read(terms)
    launched = launched_processes(device)
    network, tokenizers = load_translation_model(
        model,
        device=device if launched is None else str(launched.device),
        dtype=dtype,
        trust_remote_code=trust_remote_code,
        progress=progress,
    )
    if sample:
        set_seed(seed)
    if num_beams is None and n_best > 1:
        num_beams = max(n_best, network.generation_config.num_beams or 1)
    pool = None
    if processes is not None:
        pool = TranslationPool(processes, model, dtype=dtype, trust_remote_code=trust_remote_code)

    def windows() -> Generator[list[list[Hypothesis]]]:
        with pool or nullcontext():
            yield from n_best_stream(
                network,
                tokenizers,
                sentences,
                n_best,
                progress=progress,
                processes=launched,
                pool=pool,
                src_lang=source_lang,
                tgt_lang=target_lang,
                num_beams=num_beams,
                truncation=truncation or None,
                check_coverage=check_coverage or None,
                terms=glossary,
                do_sample=sample or None,
                **options,
            )
        if launched is not None:
            launched.destroy_process_group()

    return windows()
