# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Several language pairs in one corpus: a tag before each source names the language to translate into."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from datasets import DatasetDict, concatenate_datasets
from tokenizers import AddedToken

from .report import FilterReport

if TYPE_CHECKING:
    from .corpora import DataArguments
    from .tokenization import TokenizerPair

Pair = tuple[str, str]


def parse_language_pairs(texts: Sequence[str]) -> list[Pair]:
    """Reads pairs such as "de-en"; one language twice in a pair, or one pair twice, is a `ValueError`."""
    pairs = []
    for text in texts:
        source, dash, target = str(text).partition("-")
        if not (source and dash and target) or "-" in target:
            raise ValueError(f"language_pairs: {text!r} must be SOURCE-TARGET, such as de-en")
        if source == target:
            raise ValueError(f"language_pairs: {text!r} has one language twice; name two")
        if (source, target) in pairs:
            raise ValueError(f"language_pairs: {text!r} is listed twice; leave one out")
        pairs.append((source, target))
    return pairs


def language_tags(pairs: Sequence[Pair]) -> list[str]:
    """Returns a tag for each target language, ">>de<<" as in Marian's models; none if there is one target language.

    The tag stands before a source. `TranslationPipeline` writes it when it is given `tgt_lang="de"`.
    """
    targets = list(dict.fromkeys(target for _, target in pairs))
    return [f">>{target}<<" for target in targets] if len(targets) > 1 else []


def add_language_tags(tokenizers: TokenizerPair, tags: Iterable[str]) -> None:
    """Makes each tag one token of the source vocabulary, unless it is one already."""
    # normalized=False leaves the encoding of the text around a tag unchanged; rstrip takes the space after the tag
    new = [AddedToken(tag, rstrip=True, normalized=False, special=False) for tag in tags]
    tokenizers.source.add_tokens(new)


def merge_language_pairs(
    pairs: Sequence[Pair], loaded: dict[Pair, tuple[DatasetDict, FilterReport]]
) -> tuple[DatasetDict, FilterReport]:
    """Merges the corpora of several pairs into one training and one validation split, and test splits for each pair.

    Args:
        pairs: All pairs, which decide whether there are tags.
        loaded: Corpus and counts of each pair that was loaded.
    """
    tags = language_tags(pairs)
    parts: dict[str, list] = {}
    report = FilterReport()
    for (source, target), (splits, counts) in loaded.items():
        for name, rows in splits.items():
            split = name if name in ("train", "validation") else f"{name}_{source}-{target}"
            if tags:
                rows = rows.map(_add_tag, fn_kwargs={"tag": f">>{target}<<"}, batched=True)
            parts.setdefault(split, []).append(rows)
            report.add(split, counts, name)
    return DatasetDict({split: concatenate_datasets(rows) for split, rows in parts.items()}), report


def _add_tag(batch: dict[str, list[str]], tag: str) -> dict[str, list[str]]:
    # A blank source stays blank: it has no translation
    return {"source": [f"{tag} {text}" if text.strip() else text for text in batch["source"]]}


def arguments_of_pair(args: DataArguments, pair: Pair) -> DataArguments:
    """Returns the arguments that load one of the pairs."""
    return dataclasses.replace(args, language_pairs=None, source_lang=pair[0], target_lang=pair[1])
