# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Checks of a card's metadata by the Hub's rules, and of its numbers by what the run measured.

The Hub checks metadata when a card is pushed, and refuses or ignores what it does not know. Its specification is
modelcard.md of huggingface/hub-docs, its licences the page repositories-licenses there, its tasks pipelines.ts of
huggingface/huggingface.js. No network is needed here.
"""

import re
from collections.abc import Iterator
from typing import Any, cast

from huggingface_hub import ModelCard, ModelCardData

from ..evaluation.metrics import SacrebleuMetric, find_metric, metric_names

# Tasks that models of this package have
PIPELINE_TAGS = (
    *("translation", "text2text-generation"),
    *("text-classification", "token-classification", "feature-extraction"),
)
# Identifiers of https://hf.co/metrics that a card of this package may name
METRICS = (
    *("accuracy", "bleu", "cer", "chrf", "comet", "exact_match", "f1", "precision", "recall", "sacrebleu", "seqeval"),
    *("ter", "wer"),
)
LICENSES = frozenset(
    """
    afl-3.0 agpl-3.0 apache-2.0 apple-amlr apple-ascl artistic-2.0 bigcode-openrail-m bigscience-bloom-rail-1.0
    bigscience-openrail-m bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5
    cc-by-3.0 cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0
    cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0
    cdla-permissive-2.0 cdla-sharing-1.0 creativeml-openrail-m deepfloyd-if-license ecl-2.0 epl-1.0 epl-2.0
    etalab-2.0 eupl-1.1 eupl-1.2 gemma gfdl gpl gpl-2.0 gpl-3.0 intel-research isc lgpl lgpl-2.1 lgpl-3.0
    lgpl-lr llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 lppl-1.3c mit mpl-2.0 ms-pl ncsa odbl odc-by ofl-1.1
    open-mdw openrail openrail++ osl-3.0 other pddl postgresql unknown unlicense wtfpl zlib
    """.split()  # noqa: SIM905
)
# ISO 639-1. Codes of three letters (ISO 639-2 and 639-3) are some 8,000 and are checked by their form alone.
LANGUAGES = frozenset(
    """
    aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee
    el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is
    it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms
    mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk
    sl sm sn so sq sr ss st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi
    yo za zh zu
    """.split()  # noqa: SIM905
)


def is_on_hub(metric: str) -> bool:
    """Says whether the Hub knows a metric of a run's results; metrics outside the table are a classifier's."""
    return metric not in metric_names() or find_metric(metric).on_hub


def decimals_of(metric: str) -> int:
    """Returns the decimals of a score in a card: scores of translations go to 100, those of classifiers to 1."""
    return find_metric(metric).decimals if metric in metric_names() else 4


def _is_sacrebleus(metric: str) -> bool:
    return metric in metric_names() and issubclass(find_metric(metric), SacrebleuMetric)


_ID = re.compile(r"(?:[\w-][\w.-]*/)?[\w-][\w.-]*")


def card_problems(
    card: ModelCard, results: dict[str, Any] | None = None, *, pipeline_tag: str | None = None
) -> list[str]:
    """Checks a model card against the Hub's rules, and against what its run measured.

    Args:
        card: The card.
        results: The run's `results.json`, with which the card's text must agree; None = only the scores in the
            metadata and in the table of scores are compared with each other.
        pipeline_tag: The task of the model; None = any task of this package.

    Returns:
        The problems found, one sentence each; none if the card is right.
    """
    data = cast(ModelCardData, card.data)
    problems = list(_metadata_problems(data, pipeline_tag))
    if not problems:  # what follows needs valid metadata
        problems += _score_problems(data, card.text, results)
    if results is not None:
        problems += _text_problems(card.text, results)
    return problems


def _metadata_problems(data: ModelCardData, pipeline_tag: str | None) -> Iterator[str]:
    for name in ("library_name", "pipeline_tag", "license"):
        if not data.get(name):
            yield f"the metadata have no {name}"
    if data.get("library_name") not in (None, "transformers"):
        yield f"library_name must be transformers, got {data.library_name!r}"
    tags = PIPELINE_TAGS if pipeline_tag is None else (pipeline_tag,)
    if data.get("pipeline_tag") and data.pipeline_tag not in tags:
        yield f"pipeline_tag must be {' or '.join(tags)}, got {data.pipeline_tag!r}"
    for license in _listed(data.get("license")):
        if license not in LICENSES:
            yield f"license {license!r} is unknown to the Hub; write apache-2.0, mit, ..., or other, or unknown"
    for language in _listed(data.get("language")):
        if not _is_language(language):
            yield f"language {language!r} is no ISO 639 code in small letters"
    for metric in _listed(data.get("metrics")):
        if metric not in METRICS:
            yield f"metric {metric!r} must be one of {', '.join(METRICS)}"
    for name in ("datasets", "base_model"):
        for entry in _listed(data.get(name)):
            if not (isinstance(entry, str) and _ID.fullmatch(entry)):
                yield f"{name}: {entry!r} cannot be a name on the Hub"
    for tag in _listed(data.get("tags")):
        if not isinstance(tag, str):
            yield f"tags: {tag!r} is no text"
    yield from _result_problems(data)


def _result_problems(data: ModelCardData) -> Iterator[str]:
    """Checks the values of the model-index, whose structure huggingface_hub has checked already."""
    if data.get("eval_results") and not data.get("model_name"):
        yield "the model-index has no name"
    for result in data.get("eval_results") or []:
        where = f"the result {result.metric_type!r} of split {result.dataset_split!r}"
        if result.task_type not in PIPELINE_TAGS:
            yield f"{where} has the unknown task {result.task_type!r}"
        if result.metric_type not in METRICS:
            yield f"{where} has an unknown metric"
        if not (isinstance(result.dataset_type, str) and _ID.fullmatch(result.dataset_type)):
            yield f"{where} has the dataset type {result.dataset_type!r}, which cannot be a name on the Hub"
        if isinstance(result.metric_value, bool) or not isinstance(result.metric_value, int | float):
            yield f"{where} has the value {result.metric_value!r}, which is no number"
        signature = str((result.metric_args or {}).get("signature"))
        if _is_sacrebleus(result.metric_type) and "version:" not in signature:
            yield f"{where} has no sacreBLEU signature"


def _listed(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


def _is_language(code: Any) -> bool:
    if not isinstance(code, str):
        return False
    return code in LANGUAGES or code in ("multilingual", "code") or re.fullmatch("[a-z]{3}", code) is not None


def _score_problems(data: ModelCardData, text: str, results: dict[str, Any] | None) -> Iterator[str]:
    """Compares the model-index, the table of scores and the run's results, if they are given."""
    table = score_table(text)
    index = {(str(entry.dataset_split), entry.metric_type): entry for entry in data.eval_results or []}
    for (split, metric), entry in index.items():
        shown = _number(table.get(split, {}).get(_heading(metric)))
        if shown != entry.metric_value and (shown is not None or results is not None):
            yield f"{metric} of {split} is {entry.metric_value} in the model-index and {shown} in the table"
    if results is None:
        return
    for entry in index.values():
        signature = (entry.metric_args or {}).get("signature")
        if signature and f"`{signature}`" not in text:
            yield f"the text lacks the signature of {entry.metric_type}, {signature}"
    measured = {
        (split, metric): (float(entry[metric]), entry.get(f"{metric}_signature"))
        for split, entry in (results.get("scores") or {}).items()
        for metric in METRICS
        if entry.get(metric) is not None
    }
    for split, metric in sorted({*measured} ^ {*index}):
        yield f"{metric} of {split} is in {'the results' if (split, metric) in measured else 'the card'} alone"
    for key in measured.keys() & index.keys():
        value, signature = measured[key]
        if round(value, decimals_of(key[1])) != index[key].metric_value:
            yield f"{key[1]} of {key[0]} is {value} in the results and {index[key].metric_value} in the card"
        if signature != (index[key].metric_args or {}).get("signature"):
            yield f"the signature of {key[1]} of {key[0]} is not that of the results, {signature}"


def _heading(metric: str) -> str:
    """Returns what a table of scores calls a metric, in small letters."""
    return find_metric(metric).label.lower() if metric in metric_names() else metric


def _number(cell: str | None) -> float | None:
    try:
        return None if cell is None else float(cell)
    except ValueError:  # a card written by hand may say anything
        return None


def _text_problems(text: str, results: dict[str, Any]) -> Iterator[str]:
    """Checks that the text holds what the template writes about the results."""
    training, environment = results.get("training") or {}, results.get("environment") or {}
    formats: list[tuple[Any, str]] = [
        (results.get("parameters"), "{:,} parameters"),
        (training.get("updates"), "{:,} updates"),
        (training.get("epochs"), "({:.3g} epochs)"),
        (training.get("seconds") and training["seconds"] / 60, "in {:.1f} minutes"),
        (training.get("tokens_per_second"), "{:,.0f} tokens per second"),
        (training.get("updates_per_second"), "{:.3g} updates per second"),
        (None if training.get("seed") is None else str(training["seed"]), "seed {}"),  # 0 is one, too
        ((results.get("chosen") or {}).get("weights"), "The weights are those of {}"),
        (environment.get("transformers"), "transformers {}"),
        (environment.get("torch"), "torch {}"),
        (environment.get("sacrebleu"), "sacreBLEU {}"),
        (environment.get("device"), "on {}"),
    ]
    for value, template in formats:
        if value and not re.search(re.escape(phrase := template.format(value)) + r"(?!\w)", text):
            yield f"the text does not say {phrase!r}, as the results do"
    table = score_table(text)
    for split, entry in (results.get("scores") or {}).items():
        row = table.get(split, {})
        for name, key, template in (
            ("sentences", "sentences", "{:,}"),
            ("beam", "num_beams", "{}"),
            ("sentences per second", "sentences_per_second", "{:.1f}"),
        ):
            expected = template.format(entry[key]) if entry.get(key) else None
            if expected and row.get(name, expected) != expected:
                yield f"{name} of {split} is {row[name]} in the table and {expected} in the results"


def score_table(text: str) -> dict[str, dict[str, str]]:
    """Reads the table of scores of a card: for each split its cells, by the headings in small letters."""
    section = re.search(r"^## Scores\n(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL)
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in (section[1] if section else "").splitlines()
        if line.startswith("|")
    ]
    if len(rows) < 2:
        return {}
    headings = [cell.lower() for cell in rows[0]]
    return {row[0]: dict(zip(headings[1:], row[1:], strict=False)) for row in rows[2:]}
