# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Alignments of sentence pairs, read off a translation model's cross-attention."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from transformers import PreTrainedModel

from csan_hf.alignment import Alignment, align_pairs
from csan_hf.data import TokenizerPair
from csan_hf.pipelines.torch_engine import torch_engine
from csan_hf_runtime.engine import source_reader

from .corpus_translation import best_texts, translate_stream


def align(
    model: PreTrainedModel,
    tokenizers: TokenizerPair,
    sources: Sequence[str],
    targets: Sequence[str] | None = None,
    **options: Any,
) -> list[Alignment]:
    """Aligns sentence pairs as `align_stream` does, which has the same options, at once."""
    return list(align_stream(model, tokenizers, sources, targets, **options))


def align_stream(
    model: PreTrainedModel,
    tokenizers: TokenizerPair,
    sources: Collection[str],
    targets: Collection[str] | None = None,
    *,
    layer: int = -1,
    batch_size: int = 32,
    progress: bool = False,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    **generate_arguments: Any,
) -> Iterator[Alignment]:
    """Aligns sentence pairs by a model's cross-attention while it predicts the given targets, in
    memory that does not grow with their number.

    - Pervasive Attention has one alignment: the attention's weights, or the contributions of the
      source tokens to the target token's logit (equation 7), which can be negative.
    - A Transformer (CSAN, Marian...) has one for each head and decoder layer. The mean over the
      heads of one layer is taken, by default of the last. That is only a convention: nothing trains
      a head to align, and another layer often aligns better. Row i is the attention with which
      token i was predicted.

    The model keeps its training mode and attention implementation: alignments are computed on a
    view of it. A window of `csan_hf_runtime.windows.WINDOW_LINES` pairs, less where they are very
    long, is aligned at a time.

    Args:
        model: A sequence-to-sequence model, on any device.
        tokenizers: Its source and target tokenizers, fast ones.
        sources: Source sentences. They and the targets are not cut, however long, and may be files
            (`csan_hf_runtime.text_files.TextFile`).
        targets: As many target sentences, or None to let the model translate. A translation is
            tokenized again from its text.
        layer: Decoder layer, counted from 0, or from the last with -1.
        batch_size: Sentence pairs at a time; pairs of similar lengths are put together.
        progress: Shows bars on standard error.
        src_lang: Language of the sources, of a model of several.
        tgt_lang: Language of the targets, of a model of several; or the sources begin with its tag,
            which is no word.
        generate_arguments: For `generate`, where targets is None; None means the generation
            config's value.

    Yields:
        As many alignments as there are sources, in their order.

    Raises:
        ValueError: If the numbers of sentences differ, there is no such layer, a tokenizer is not a
            fast one, the model gives no cross-attention, or a language is unknown or missing.
    """
    if targets is not None and generate_arguments:
        raise ValueError(
            f"{', '.join(generate_arguments)}: leave out, as nothing is generated where targets "
            "are given."
        )
    engine = torch_engine(model, tokenizers)
    engine.check_attention("alignments")  # before anything is translated
    tokenizers = engine.tokenizers(src_lang, tgt_lang)
    translations: Iterable[str] = targets or ()
    if targets is None:
        windows = translate_stream(
            model,
            tokenizers,
            sources,
            progress=progress,
            split_sentences="never",
            src_lang=src_lang,
            tgt_lang=tgt_lang,
            **generate_arguments,
        )
        translations = best_texts(windows)
    return align_pairs(
        model,
        tokenizers,
        zip(sources, translations, strict=True),
        layer=layer,
        batch_size=batch_size,
        total=len(sources),
        progress=progress,
        read=source_reader(engine, src_lang, tgt_lang),
    )
