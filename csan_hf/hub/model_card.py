# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Model cards, written from what a run measured."""

import json
import os
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from ..analysis.locality_picture import draw_locality
from ..data import DataArguments
from ..evaluation.metrics import DEFAULT_METRICS, find_metric, metric_names, metrics_in
from ..families import family_of
from ..models.configuration_seq2seq import MINIMUM_TRANSFORMERS
from ..text_files import write_bytes, write_text
from .public_files import is_local_path, public_recipe

TEMPLATE = Path(__file__).parent / "templates" / "model_card.md.jinja"
LOCALITY_PICTURE = "locality.png"
PLOTS = "plots"
"""Folder of a report's plots, each as PNG and SVG; `results.json` lists them."""
# Metrics of classifiers, which go to 1; those of translations have a table of their own
_CLASSIFICATION = {"accuracy": "accuracy", "f1": "F1", "precision": "precision", "recall": "recall"}
_TASKS = {"ForSequenceClassification": "text-classification", "ForTokenClassification": "token-classification"}
_EXAMPLES = {
    "de": "Ein Hund läuft durch den Schnee.",
    "en": "A dog runs through the snow.",
    "fr": "Un chien court dans la neige.",
    "ja": "犬が雪の中を走っています。",
    "zh": "一只狗在雪地里奔跑。",
}
_NUMBERS_EXAMPLES = {
    "de": "Die Zahl ist vierhunderteinundsechzig.",
    "en": "The number is four hundred and sixty-one.",
}
_MEASURED = {"translation": "Translation, with its loss", "text2text-generation": "Generation, with the loss"}


def write_model_card(output_dir: str | os.PathLike, recipe: dict[str, Any], results: dict[str, Any]) -> Path:
    """Writes `README.md`, the model card, into the folder of a run.

    Args:
        output_dir: The folder of a run or checkpoint. Its `config.json` describes the model, where there is one: a
            translation model or a classifier, whose locality is drawn as `locality.png`. Its `training.png` is shown,
            and of `plots/` what the results list.
        recipe: The recipe as a dict: `name`, `description`, `language`, `license`, `dataset_name`, `init_from` and
            the sections `config`, `data`, `tokenizer`, `training`, `generation`; `hub_dataset`; `task`, the tag of a
            model that is not for translation. All may be missing.
        results: The content of `results.json`: `model`, `parameters`, `chosen`, `scores` by split (`bleu`, `chrf` and
            their signatures, or `accuracy`, `f1`, `precision`, `recall` of a classifier; `sentences`, `num_beams`,
            `seconds`, ...), `training`, `environment`; `example`, an input to show. All may be missing.

    Returns:
        The path of the card.

    Raises:
        OSError: The card cannot be written.
    """
    output_dir = Path(output_dir)
    config = _read_config(output_dir)
    if config is not None and family_of(config.get("model_type")).draw is not None:
        draw_locality(config, output_dir / LOCALITY_PICTURE)
    else:
        (output_dir / LOCALITY_PICTURE).unlink(missing_ok=True)  # of a model that stood there before
    card = build_model_card(output_dir, recipe, results)
    path = output_dir / "README.md"
    write_text(path, str(card))
    return path


def build_model_card(output_dir: Path, recipe: dict[str, Any], results: dict[str, Any]) -> ModelCard:
    """Makes the card of a run without writing it; the arguments are those of `write_model_card`."""
    config = _read_config(output_dir) or dict(recipe.get("config") or {})
    task = task_of(config)
    tag = (recipe.get("task") or task) if task == "translation" else task
    name = _line(recipe.get("name") or output_dir.resolve().name)
    languages = [_line(language) for language in _languages(recipe)]
    dataset = _dataset_name(recipe)
    # Weights that nobody has trained here, a converted checkpoint, say, have no results
    scores = results.get("scores") or {}
    metrics = _metrics_of(task, scores)
    source = languages[0] if languages else None
    recipe_text = _recipe_text(recipe)
    examples = _NUMBERS_EXAMPLES if dataset == "numbers" else _EXAMPLES
    pictures = {"picture": "training.png", "locality_picture": LOCALITY_PICTURE}
    return ModelCard.from_template(
        _card_data(
            recipe,
            name,
            str(config.get("model_type") or recipe.get("model") or "csan"),
            tag,
            languages,
            dataset,
            metrics,
            scores,
        ),
        template_path=str(TEMPLATE),
        name=name,
        description=recipe.get("description"),
        task=task,
        tag=tag,
        languages=languages,
        **_architecture(config, results, task),
        config=config,
        labels=list((config.get("id2label") or {0: "LABEL_0", 1: "LABEL_1"}).values()),  # the library's default
        model_id=_literal(_model_id(recipe, output_dir)),
        minimum_transformers=MINIMUM_TRANSFORMERS,
        example=_literal(results.get("example") or examples.get(source or "en", _EXAMPLES["en"])),
        dataset=dataset,
        init_from=_public_name(recipe.get("init_from")),
        recipe=recipe_text,
        fence="`" * max(3, 1 + max(map(len, re.findall("`+", recipe_text)), default=0)),
        metrics=metrics,
        scores=[_score_row(split, entry, metrics) for split, entry in scores.items()],
        signatures=_signatures(scores, metrics),
        speeds=_speeds(results, tag),
        training=results.get("training") or {},
        chosen=(results.get("chosen") or {}).get("weights"),
        parameters=results.get("parameters"),
        environment=results.get("environment") or {},
        plots=_plots(results, output_dir),
        **{key: file if (output_dir / file).is_file() else None for key, file in pictures.items()},
    )


def copy_model_card(run: str | os.PathLike, path: str | os.PathLike) -> Path:
    """Copies the card of a run to a folder of cards, with its pictures and the results that it was written from.

    `copy_model_card("runs/numbers", "model_cards/numbers.md")` writes `numbers.md`, `numbers.json` (the run's
    `results.json`), `numbers.png` (loss and scores), `numbers_locality.png` and, of a report's plots,
    `numbers_NAME.png` and `numbers_NAME.svg`.

    Args:
        run: Folder of the run.
        path: The card's new name, with the ending `.md`.

    Returns:
        `path` as a `Path`.

    Raises:
        ValueError: `path` does not end in `.md`, or the card does not say what the results do.
        OSError: The run has no card or no results, or the copies cannot be written.
    """
    run, path = Path(run), Path(path)
    if path.suffix != ".md":
        raise ValueError(f"The card's new name must end in .md, got {path}.")
    text = (run / "README.md").read_text(encoding="utf-8")
    results = (run / "results.json").read_text(encoding="utf-8")
    if problems := card_problems(ModelCard(text), json.loads(results)):
        raise ValueError(f"The card of {run} and its results.json do not agree:\n- " + "\n- ".join(problems))
    path.parent.mkdir(parents=True, exist_ok=True)
    names = {"training.png": f"{path.stem}.png", LOCALITY_PICTURE: f"{path.stem}_{LOCALITY_PICTURE}"}
    for plot in _plots(json.loads(results), run):
        names |= {f"{PLOTS}/{plot['name']}{end}": f"{path.stem}_{plot['name']}{end}" for end in (".png", ".svg")}
    for picture, name in names.items():
        if f"]({picture})" in text:
            write_bytes(path.with_name(name), (run / picture).read_bytes())
            text = text.replace(f"]({picture})", f"]({name})")
    write_text(path.with_suffix(".json"), results)
    write_text(path, text)
    return path


def card_problems(
    card: ModelCard, results: dict[str, Any] | None = None, *, pipeline_tag: str | None = None
) -> list[str]:
    """Checks a card for what its model and its run say; the Hub checks the rest when the card is pushed.

    Args:
        card: The card.
        results: The run's `results.json`, whose scores and speeds the card must give; None = not compared.
        pipeline_tag: The task of the model; None = any.

    Returns:
        The problems found, one sentence each; none if the card is right.
    """
    data: Any = card.data
    expected = {"library_name": ["transformers"], "pipeline_tag": [pipeline_tag or data.get("pipeline_tag")]}
    if pipeline_tag == "translation":  # whose pipeline serves any conversion of text
        expected["pipeline_tag"].append("text2text-generation")
    problems = [
        f"{field} must be {' or '.join(map(str, values))}, got {data.get(field)!r}"
        for field, values in expected.items()
        if data.get(field) not in values or not data.get(field)
    ]
    return problems if results is None else [*problems, *_differences(card, results)]


def _differences(card: ModelCard, results: dict[str, Any]) -> Iterator[str]:
    """Compares a card with one that is made of the results alone."""
    task = card.data.get("pipeline_tag")
    head = next((head for head, tag in _TASKS.items() if tag == task), "")
    made = build_model_card(Path(), {"task": task, "config": {"architectures": [head]}}, results)
    given, measured = (
        {
            f"{entry.metric_type} of {entry.dataset_split}": (entry.metric_value, entry.metric_args)
            for entry in each.data.get("eval_results") or []
        }
        for each in (card, made)
    )
    for score in sorted(given.keys() | measured.keys()):
        if given.get(score) != measured.get(score):
            yield f"{score} is {given.get(score)} in the metadata and {measured.get(score)} in the results"
    shown = made.text[made.text.index("## Training") : made.text.index("## Limits")]
    for line in re.sub("The recipe.*?(?=## Scores)", "", shown, flags=re.DOTALL).splitlines():
        if line not in card.text:
            yield f"the text does not say {line!r}, as the results do"


def task_of(config: dict[str, Any]) -> str:
    """Returns the Hub's name for what a model does, its `pipeline_tag`.

    Args:
        config: The fields of its config; `architectures` names the class that was saved.
    """
    architecture = next(iter(config.get("architectures") or []), "")
    return next((task for head, task in _TASKS.items() if architecture.endswith(head)), "translation")


def _is_on_hub(metric: str) -> bool:
    return metric not in metric_names() or find_metric(metric).on_hub


def _decimals(metric: str) -> int:
    return find_metric(metric).decimals if metric in metric_names() else 4


def _metrics_of(task: str, scores: dict[str, Any]) -> dict[str, str]:
    """Returns the metrics that were measured, with their names; of a translation the usual ones where none were."""
    measured = {key for entry in scores.values() for key in entry}
    if task == "translation":
        return {metric.name: metric.label for metric in metrics_in(measured or DEFAULT_METRICS)}
    return {metric: label for metric, label in _CLASSIFICATION.items() if metric in measured}


def _plots(results: dict[str, Any], output_dir: Path) -> list[dict[str, str]]:
    """Returns names and titles of a report's plots, those whose files are there."""
    found = []
    for entry in results.get("plots") or []:
        name, title = str(entry["name"]), re.sub(r"([\\`*_\[\]()<>])", r"\\\1", " ".join(str(entry["title"]).split()))
        files = [output_dir / PLOTS / f"{name}{end}" for end in (".png", ".svg")]
        if re.fullmatch(r"[\w-]+", name) and all(file.is_file() for file in files):
            found.append({"name": name, "title": title})
    return found


def _architecture(config: dict[str, Any], results: dict[str, Any], task: str) -> dict[str, Any]:
    """Returns what the template says of the network: its kind, its grid or its locality, and whose ideas those are."""
    said: dict[str, Any] = {"kind": results.get("model"), "grid": None, "locality": [], "papers": []}
    describe = family_of(config.get("model_type", "csan")).describe
    return said | (pkgutil.resolve_name(describe)(config, task) if describe is not None else {})


def _card_data(
    recipe: dict[str, Any],
    name: str,
    family: str,
    task: str,
    languages: list[str],
    dataset: str | None,
    metrics: dict[str, str],
    scores: dict[str, Any],
) -> ModelCardData:
    """Returns what the Hub reads: the block at the head of the card."""
    slug = _slug(dataset) if dataset else None
    hub_dataset = _hub_name((recipe.get("data") or {}).get("dataset"))
    training_data = hub_dataset or _hub_name(recipe.get("hub_dataset"))
    task_name = task.replace("-", " ").capitalize()
    return ModelCardData(
        language=languages or None,
        license=recipe.get("license") or "unknown",
        library_name="transformers",
        pipeline_tag=task,
        tags=[task, family, family_of(family).tag],
        base_model=_hub_name(recipe.get("init_from")),
        datasets=[training_data] if training_data else None,
        metrics=[metric for metric in metrics if _is_on_hub(metric)] or None,
        model_name=name,
        eval_results=[
            EvalResult(
                task_type=task,
                task_name=task_name + (f" {'-'.join(languages)}" if languages else ""),
                dataset_type=hub_dataset or slug or "unknown",
                dataset_name=dataset or "unknown",
                dataset_split=split,
                metric_type=metric,
                metric_name=label,
                metric_value=round(float(entry[metric]), _decimals(metric)),
                metric_args={"signature": entry[f"{metric}_signature"]} if f"{metric}_signature" in entry else None,
            )
            for split, entry in scores.items()
            for metric, label in metrics.items()
            if entry.get(metric) is not None and _is_on_hub(metric)
        ]
        or None,
    )


def _read_config(output_dir: Path) -> dict[str, Any] | None:
    path = output_dir / "config.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _languages(recipe: dict[str, Any]) -> list[str]:
    """Returns the language codes, source first, as far as they are known."""
    languages = recipe.get("language")
    if languages is not None:
        return [languages] if isinstance(languages, str) else list(languages)
    if not (data := recipe.get("data")):
        return []
    if pairs := data.get("language_pairs"):
        return list(dict.fromkeys(language for pair in pairs for language in pair.split("-")))
    return [data.get("source_lang", DataArguments.source_lang), data.get("target_lang", DataArguments.target_lang)]


def _dataset_name(recipe: dict[str, Any]) -> str | None:
    """Returns what the card calls the data."""
    data = recipe.get("data") or {}
    name = data.get("dataset") or data.get("data_dir")
    shown = recipe.get("dataset_name") or _public_name(name)
    return None if shown is None else _line(shown)


def _hub_name(name: Any) -> str | None:
    """Returns a name where it can only be the Hub's, `owner/name`, and no path of this machine."""
    is_name = isinstance(name, str) and re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name) is not None
    return name if is_name and not os.path.exists(name) else None


def _public_name(name: Any) -> str | None:
    """Returns the public name of a data set or checkpoint: its name on the Hub, or that of its folder."""
    return None if name is None else (_hub_name(name) or _line(Path(str(name)).name))


def _model_id(recipe: dict[str, Any], output_dir: Path) -> str:
    """Returns the name under which the card's example loads the model."""
    hub_id = (recipe.get("training") or {}).get("hub_model_id")
    if hub_id:
        return str(hub_id)
    return output_dir.name if is_local_path(str(output_dir)) else output_dir.as_posix()


def _line(text: Any) -> str:
    """Returns a name of a recipe as one line of Markdown, which begins nothing new and holds no HTML."""
    return " ".join(str(text).split()).replace("<", "&lt;")


def _literal(text: Any) -> str:
    """Returns text as a Python string literal for the card's example, from which no text can break out."""
    return json.dumps(str(text), ensure_ascii=False)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _recipe_text(recipe: dict[str, Any]) -> str:
    shown = public_recipe(recipe)
    return yaml.safe_dump(shown, sort_keys=False, allow_unicode=True).strip() if shown else ""


def _score_row(split: str, entry: dict[str, Any], metrics: dict[str, str]) -> dict[str, Any]:
    """Returns one line of the card's table; a speed where it or the time is known."""
    sentences, seconds = entry.get("sentences"), entry.get("seconds")
    speed = entry.get("sentences_per_second") or (sentences / seconds if sentences and seconds else None)
    values = {metric: entry.get(metric) for metric in metrics}
    cells = ["" if value is None else f"{value:.{_decimals(metric)}f}" for metric, value in values.items()]
    return {"split": split, **entry, "cells": cells, "speed": speed}


def _signatures(scores: dict[str, Any], metrics: dict[str, str]) -> dict[str, list[str]]:
    """Returns the distinct sacreBLEU signatures of each metric, in order of appearance."""
    found = {
        label: dict.fromkeys(filter(None, (entry.get(f"{metric}_signature") for entry in scores.values())))
        for metric, label in metrics.items()
    }
    return {label: list(signatures) for label, signatures in found.items() if signatures}


def _speeds(results: dict[str, Any], task: str) -> list[str]:
    """Returns sentences on the speed in training and in use, and on what they were measured; none without either."""
    training, environment = results.get("training") or {}, results.get("environment") or {}
    rows = [_score_row(split, entry, {}) for split, entry in (results.get("scores") or {}).items()]
    lines = []
    if training.get("tokens_per_second") and training.get("updates_per_second"):
        lines.append(
            f"Training: {training['tokens_per_second']:,.0f} tokens (source and target) and "
            f"{training['updates_per_second']:.3g} updates per second; medians, evaluations left out."
        )
    if used := [row for row in rows if row["speed"]]:
        what = _MEASURED.get(task, "Classification")
        beams = {row["num_beams"] for row in used if row.get("num_beams")}
        with_beam = f", beam {beams.pop()}" if len(beams) == 1 else ""
        speeds = ", ".join(f"{row['speed']:.1f} ({row['split']})" for row in used)
        lines.append(f"{what}: {speeds} sentences per second{with_beam}.")
    if lines and environment.get("device"):
        lines.append(f"Device: {_device(environment)}.")
    return lines


def _device(environment: dict[str, Any]) -> str:
    devices, threads = environment.get("devices") or 1, environment.get("threads")
    name = f"{devices} × {environment['device']}" if devices > 1 else environment["device"]
    return name + (f", {threads} thread{'s' if threads > 1 else ''} per process" if threads else "")
