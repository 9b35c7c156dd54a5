# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Cards beside the results that they were written from."""

import re
from pathlib import Path

from csan_hf.hub import build_model_card, card_problems

HEADS = {
    "text-classification": "ForSequenceClassification",
    "token-classification": "ForTokenClassification",
}


def faults(card, results, *, pipeline_tag=None):
    """The problems of a card, and what it says otherwise than the results."""
    return [*card_problems(card, pipeline_tag=pipeline_tag), *differences(card, results)]


def differences(card, results):
    """Compares a card with one that is made of the results alone."""
    task = card.data.get("pipeline_tag")
    config = {"architectures": [HEADS.get(task, "")]}
    expected = build_model_card(Path(), {"task": task, "config": config}, results)
    stated = stated_scores(card)
    measured = stated_scores(expected)
    for score in sorted(stated.keys() | measured.keys()):
        if stated.get(score) != measured.get(score):
            yield (
                f"{score} is {stated.get(score)} in the metadata and {measured.get(score)} in the "
                "results"
            )
    start = expected.text.index("## Training")
    shown = expected.text[start : expected.text.index("## Limits")]
    for line in re.sub("The recipe.*?(?=## Scores)", "", shown, flags=re.DOTALL).splitlines():
        if line not in card.text:
            yield f"the text does not say {line!r}, as the results do"


def stated_scores(card):
    """Values and signatures in a card's metadata, by metric and split."""
    return {
        f"{entry.metric_type} of {entry.dataset_split}": (entry.metric_value, entry.metric_args)
        for entry in card.data.get("eval_results") or []
    }
