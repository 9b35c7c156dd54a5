# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Forced decoding: how probable a model finds given translations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from accelerate import PartialState
from accelerate.utils import gather_object
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from csan_hf.models.evaluation_view import evaluation_view
from csan_hf.pipelines import TextTranslationPipeline
from csan_hf_runtime.texts import batches_by_length

if TYPE_CHECKING:
    from csan_hf.data import TokenizerPair


@torch.inference_mode()
def score_forced(
    model: PreTrainedModel,
    tokenizers: TokenizerPair,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    max_batch_tokens: int = 4096,
    progress: bool = False,
    processes: PartialState | None = None,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
) -> list[dict[str, Any]]:
    """Scores given translations, each whole, longest first; see `translate` for the arguments.

    Args:
        targets: A translation of each source.
        max_batch_tokens: Tokens of the longer side in a batch, padding included.

    Returns:
        For each pair `log_probability`, the natural logarithm of the target's probability given the
        source, and `tokens`, of the target, "</s>" included: those of the validation loss.
    """
    view = evaluation_view(model)
    pipeline: Any = TextTranslationPipeline(
        model=view,
        tokenizer=tokenizers.source,
        target_tokenizer=tokenizers.target,
        device=model.device,
    )
    if tgt_lang is not None and hasattr(tokenizers.target, "tgt_lang"):
        tokenizers.target.tgt_lang = tgt_lang
    inputs = [
        pipeline.preprocess(text, src_lang=src_lang, tgt_lang=tgt_lang)["input_ids"][0]
        for text in sources
    ]
    labels = [
        torch.tensor(tokenizers.target(text_target=text, verbose=False)["input_ids"])
        for text in targets
    ]
    lengths = [max(len(source), len(target)) for source, target in zip(inputs, labels, strict=True)]
    batches = list(batches_by_length(lengths, max_batch_tokens))
    if processes is not None:
        batches = batches[processes.process_index :: processes.num_processes]
    scores: list[tuple[int, dict[str, Any]]] = []
    for batch in tqdm(batches, desc="scoring", unit=" batches", disable=not progress):
        sources_ids = [inputs[number] for number in batch]
        batch_labels = _padded((labels[number] for number in batch), -100).to(model.device)
        logits = view(
            input_ids=_padded(sources_ids, pipeline.tokenizer.pad_token_id or 0).to(model.device),
            attention_mask=_padded(map(torch.ones_like, sources_ids), 0).to(model.device),
            labels=batch_labels,
        ).logits
        losses = F.cross_entropy(logits.float().transpose(1, 2), batch_labels, reduction="none")
        for number, loss in zip(batch, losses.double().sum(1).tolist(), strict=True):
            scores.append((number, {"log_probability": -loss, "tokens": len(labels[number])}))
    if processes is not None:
        scores = gather_object(scores)
    return [score for _, score in sorted(scores, key=itemgetter(0))]


def perplexity(scores: Sequence[dict[str, Any]]) -> float:
    """The perplexity by token of what `score_forced` returned."""
    log_probability = sum(line["log_probability"] for line in scores)
    return math.exp(-log_probability / sum(line["tokens"] for line in scores))


def _padded(rows: Iterable[torch.Tensor], padding: int) -> torch.Tensor:
    return pad_sequence(list(rows), batch_first=True, padding_value=padding)
