# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Forced decoding: how probable a model finds given translations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from accelerate import PartialState
from accelerate.utils import gather_object
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from csan_hf.alignment import check_positions
from csan_hf.alignment.aligned_pairs import padded_batch
from csan_hf.data.joining import LINE_FEED
from csan_hf.models.evaluation_view import evaluation_view
from csan_hf.pipelines.torch_engine import torch_engine
from csan_hf_runtime.engine import source_reader
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
    """Scores given translations, each whole; results are in the order of the input.

    Args:
        targets: A translation of each source.
        max_batch_tokens: Tokens of the longer side in a batch, padding included.

    Returns:
        For each pair `log_probability`, the natural logarithm of the target's probability given the
        source, and `tokens`, of the target, "</s>" included: those of the validation loss.
    """
    view = evaluation_view(model)
    tokenizers = tokenizers.with_languages(src_lang, tgt_lang)
    engine = torch_engine(view, tokenizers)
    read = source_reader(engine, src_lang, tgt_lang)
    number = getattr(view.config, "line_token_id", engine.line_token)
    line_token = LINE_FEED if number is None else str(tokenizers.target.decode([number]))
    inputs = []
    for text in sources:
        text, mark = read(text)
        marked = f"{mark}{text}".replace(LINE_FEED, line_token)
        inputs.append(torch.tensor(engine.source.encode(marked)))
    labels = []
    for text in targets:
        marked = text.replace(LINE_FEED, line_token)
        ids = tokenizers.target(text_target=marked, verbose=False)["input_ids"]
        labels.append(torch.tensor(ids))
    lengths = [max(len(source), len(target)) for source, target in zip(inputs, labels, strict=True)]
    check_positions(view, lengths)
    batches = list(batches_by_length(lengths, max_batch_tokens))
    if processes is not None:
        batches = batches[processes.process_index :: processes.num_processes]
    scores: list[tuple[int, dict[str, Any]]] = []
    for batch in tqdm(batches, desc="scoring", unit=" batches", disable=not progress):
        padded = padded_batch(
            [inputs[number] for number in batch],
            [labels[number] for number in batch],
            engine.source.padding,
        )
        padded = {name: tensor.to(model.device) for name, tensor in padded.items()}
        logits = view(**padded).logits.float().transpose(1, 2)
        losses = F.cross_entropy(logits, padded["labels"], reduction="none")
        for number, loss in zip(batch, losses.double().sum(1).tolist(), strict=True):
            scores.append((number, {"log_probability": -loss, "tokens": len(labels[number])}))
    if processes is not None:
        scores = gather_object(scores)
    return [score for _, score in sorted(scores, key=itemgetter(0))]


def perplexity(scores: Sequence[dict[str, Any]]) -> float:
    """The perplexity by token of what `score_forced` returned."""
    log_probability = sum(line["log_probability"] for line in scores)
    return math.exp(-log_probability / sum(line["tokens"] for line in scores))
