# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Model cards, written from what a run measured."""

import json
import os
import pkgutil
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers.utils import logging

from csan_hf_runtime.text_files import write_bytes, write_text

from ..families import family_of
from ..models.configuration_seq2seq import MINIMUM_TRANSFORMERS, UNTESTED_TRANSFORMERS
from .locality_reach import is_drawn
from .public_files import is_local_path, public_recipe, read_json

logger = logging.get_logger(__name__)

TEMPLATE = Path(__file__).parent / "templates" / "model_card.md.jinja"
PAPERS = TEMPLATE.with_name("papers.bib")
MODELS = Path(__file__).parents[1] / "models"
TRAINING_PICTURE = "training.png"
LOCALITY_PICTURE = "locality.png"
PLOTS = "plots"
"""Folder of a report's plots, each as PNG and SVG; `results.json` lists them."""
# Metrics of classifiers, which go to 1; those of translations have a table of their own
_CLASSIFICATION = {"accuracy": "accuracy", "f1": "F1", "precision": "precision", "recall": "recall"}
_LIBRARY_LABELS = {0: "LABEL_0", 1: "LABEL_1"}
_TASKS = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
}
EXAMPLES = {
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


_OF_DATA = ("name", "description", "license", "language", "dataset_name", "hub_dataset")
"""Keys of a recipe that hold for its own data."""


class CardMetric(Protocol):
    """A metric in a card."""

    name: str
    label: str
    decimals: int
    on_hub: bool


def write_model_card(
    output_dir: str | os.PathLike, recipe: dict[str, Any], results: dict[str, Any]
) -> Path:
    """Writes `README.md`, the model card, into the folder of a run.

    Args:
        output_dir: The folder of a run or checkpoint. The locality that its `config.json` describes
            is drawn as `locality.png`; its `training.png` is shown, and of `plots/` what the
            results list.
        recipe: The recipe as a dict: `name`, `description`, `language`, `license`, `dataset_name`,
            `hub_dataset`, `init_from`, `task` (the tag of a model that is not for translation) and
            the sections `config`, `data`, `tokenizer`, `training`, `generation`. All may be
            missing.
        results: The content of `results.json`: `model`, `parameters`, `chosen`, `scores` by split
            (`bleu`, `chrf` and their signatures, or `accuracy`, `f1`, ... of a classifier;
            `sentences`, `num_beams`, `seconds`, ...), `training`, `environment`; `example`, an
            input to show; `teachers`, names and digests of models that it learned from, and in
            `data` the `unlabelled` sources that these translated. All may be missing.

    Returns:
        The path of the card.

    Raises:
        OSError: The card cannot be written.
    """
    output_dir = Path(output_dir)
    picture = output_dir / LOCALITY_PICTURE
    path = output_dir / "README.md"
    config = read_json(output_dir / "config.json")
    if "model_type" in config and is_drawn(config):
        from .locality_picture import draw_locality  # which needs an extra

        draw_locality(config, picture)
    else:
        picture.unlink(missing_ok=True)  # of a model that stood there before
    write_text(path, str(build_model_card(output_dir, recipe, results)))
    return path


def build_model_card(
    output_dir: Path, recipe: dict[str, Any], results: dict[str, Any]
) -> ModelCard:
    """Makes the card of a run without writing it; the arguments are those of `write_model_card`."""
    recipe = names_of_its_data(recipe, results)
    config = read_json(output_dir / "config.json") or dict(recipe.get("config") or {})
    model_type = config.get("model_type") or recipe.get("model") or "csan"
    family = family_of(model_type)
    task = task_of(config)
    tag = (recipe.get("task") or task) if task == "translation" else task
    name = _line(recipe.get("name") or output_dir.resolve().name)
    languages = [_line(language) for language in _languages(recipe)]
    data = recipe.get("data") or {}
    dataset = recipe.get("dataset_name") or public_name(data.get("dataset") or data.get("data_dir"))
    dataset = dataset and _line(dataset)
    hub_dataset = _hub_name(data.get("dataset"))
    training_data = hub_dataset or _hub_name(recipe.get("hub_dataset"))
    # A converted checkpoint, which was not trained here, has no results
    scores = results.get("scores", {})
    metrics = _metrics(task, scores)
    card_data = ModelCardData(
        language=_codes(languages) or None,
        license=recipe.get("license") or "unknown",
        library_name="transformers",
        pipeline_tag=tag,
        tags=[tag, model_type, family.tag],
        base_model=_hub_name(recipe.get("init_from")),
        datasets=[training_data] if training_data else None,
        metrics=[metric.name for metric in metrics if metric.on_hub] or None,
        model_name=name,
        eval_results=_eval_results(
            tag, languages, hub_dataset, dataset or "unknown", scores, metrics
        )
        or None,
    )
    facts: dict[str, Any] = {"kind": family.kind or results.get("model"), "papers": family.papers}
    if family.describe is not None:
        facts |= pkgutil.resolve_name(family.describe)(config, task)
    for section in ("training", "environment", "chosen", "parameters"):
        facts[section] = results.get(section, {})
    shown = public_recipe(recipe)
    recipe_text = ""
    if shown:
        recipe_text = yaml.safe_dump(shown, sort_keys=False, allow_unicode=True).strip()
    examples = _NUMBERS_EXAMPLES if dataset == "numbers" else EXAMPLES
    language = languages[0] if languages else "en"
    example = results.get("example") or examples.get(language, EXAMPLES["en"])
    folder = output_dir.name if is_local_path(str(output_dir)) else output_dir.as_posix()
    model_id = (recipe.get("training") or {}).get("hub_model_id") or folder
    code = sorted(path.name for path in output_dir.glob("*.py"))
    return ModelCard.from_template(
        card_data,
        template_path=str(TEMPLATE),
        **facts,
        picture=TRAINING_PICTURE if (output_dir / TRAINING_PICTURE).is_file() else None,
        locality_picture=LOCALITY_PICTURE if (output_dir / LOCALITY_PICTURE).is_file() else None,
        bibliography=_bibliography(facts["papers"]),
        name=name,
        description=recipe.get("description"),
        task=task,
        tag=tag,
        languages=languages,
        config=config,
        has_code=family.module != "transformers",
        labels=list((config.get("id2label") or _LIBRARY_LABELS).values()),
        # Python string literals, from which no text can break out
        model_id=json.dumps(str(model_id), ensure_ascii=False),
        example=json.dumps(str(example), ensure_ascii=False),
        minimum_transformers=MINIMUM_TRANSFORMERS,
        untested_transformers=UNTESTED_TRANSFORMERS,
        dataset=dataset,
        init_from=public_name(recipe.get("init_from")),
        recipe=recipe_text,
        own_code=[name for name in code if not (MODELS / name).exists()],
        metrics=metrics,
        scores=scores,
        teachers=results.get("teachers"),
        unlabelled=(results.get("data") or {}).get("unlabelled"),
        speeds={split: _speed(entry) for split, entry in scores.items() if _speed(entry)},
        plots=_plots(results, output_dir),
    )


def names_of_its_data(recipe: dict[str, Any], results: dict[str, Any]) -> dict[str, Any]:
    """Returns a recipe without what it says of other data than a run had; see the arguments of
    `write_model_card`.

    The recipe's data are known by `validation_sha256`, beginnings of digests.
    """
    digests = recipe.get("validation_sha256")
    references = (results.get("data") or {}).get("references")
    if digests is None or references is None:  # what was not trained here has no scores either
        return recipe
    if references.get("validation", "").startswith(tuple(digests)):
        return recipe
    logger.warning(
        f"The validation set is not that of {recipe.get('dataset_name')}: the card leaves out "
        f"{', '.join(_OF_DATA)}. To say those of these data, write them into the recipe, with "
        "validation_sha256: null."
    )
    return {name: value for name, value in recipe.items() if name not in _OF_DATA}


def _bibliography(papers: Collection[str]) -> str:
    """The entries of `papers.bib` with these keys, in its order."""
    entries = PAPERS.read_text(encoding="utf-8").strip().split("\n\n")
    cited = tuple(f"{key}," for key in papers)
    return "\n\n".join(entry for entry in entries if entry.partition("{")[2].startswith(cited))


def _eval_results(
    tag: str,
    languages: list[str],
    hub_dataset: str | None,
    dataset: str,
    scores: dict[str, Any],
    metrics: Sequence[CardMetric],
) -> list[EvalResult]:
    task_name = " ".join(filter(None, [tag.replace("-", " ").capitalize(), "-".join(languages)]))
    results = []
    for split, entry in scores.items():
        for metric in metrics:
            if entry.get(metric.name) is None or not metric.on_hub:
                continue
            signature = entry.get(f"{metric.name}_signature")
            result = EvalResult(
                task_type=tag,
                task_name=task_name,
                dataset_type=hub_dataset or re.sub(r"[^a-z0-9]+", "-", dataset.lower()).strip("-"),
                dataset_name=dataset,
                dataset_split=split,
                metric_type=metric.name,
                metric_name=metric.label,
                metric_value=round(float(entry[metric.name]), metric.decimals),
                metric_args={"signature": signature} if signature else None,
            )
            results.append(result)
    return results


def copy_model_card(run: str | os.PathLike, path: str | os.PathLike) -> Path:
    """Copies the card of a run to a folder of cards, with its pictures and the results that it was
    written from.

    `copy_model_card("runs/numbers", "model_cards/numbers.md")` writes `numbers.md`, `numbers.json`
    (the run's `results.json`), `numbers.png` (loss and scores), `numbers_locality.png` and, of a
    report's plots, `numbers_NAME.png` and `numbers_NAME.svg`.

    Args:
        run: Folder of the run.
        path: The card's new name, with the ending `.md`.

    Returns:
        `path` as a `Path`.

    Raises:
        OSError: The run has no card or no results, or the copies cannot be written.
    """
    run = Path(run)
    path = Path(path)
    text = (run / "README.md").read_text(encoding="utf-8")
    results = (run / "results.json").read_text(encoding="utf-8")
    path.parent.mkdir(parents=True, exist_ok=True)
    copies = {
        TRAINING_PICTURE: f"{path.stem}.png",
        LOCALITY_PICTURE: f"{path.stem}_{LOCALITY_PICTURE}",
    }
    for plot in _plots(json.loads(results), run):
        for end in (".png", ".svg"):
            copies[f"{PLOTS}/{plot['name']}{end}"] = f"{path.stem}_{plot['name']}{end}"
    for picture, name in copies.items():
        if f"]({picture})" in text:
            write_bytes(path.with_name(name), (run / picture).read_bytes())
            text = text.replace(f"]({picture})", f"]({name})")
    write_text(path.with_suffix(".json"), results)
    write_text(path, text)
    return path


def card_problems(card: ModelCard, *, pipeline_tag: str | None = None) -> list[str]:
    """Checks a card for what its model says; the Hub checks the rest when the card is pushed.

    Args:
        card: The card.
        pipeline_tag: The task of the model; None = any.

    Returns:
        The problems found, one sentence each; none if the card is right.
    """
    library = card.data.get("library_name")
    tag = card.data.get("pipeline_tag")
    tags = [pipeline_tag or tag]
    if pipeline_tag == "translation":  # whose pipeline serves any conversion of text
        tags.append("text2text-generation")
    problems = []
    if library != "transformers":
        problems.append(f"library_name must be transformers, got {library!r}")
    if tag not in tags:
        problems.append(f"pipeline_tag must be {' or '.join(tags)}, got {tag!r}")
    return problems


def task_of(config: dict[str, Any]) -> str:
    """Returns the Hub's name for what a model does, its `pipeline_tag`.

    Args:
        config: The fields of its config; `architectures` names the class that was saved.
    """
    architecture = next(iter(config.get("architectures") or []), "")
    for head, task in _TASKS.items():
        if architecture.endswith(head):
            return task
    return "translation"


def _metrics(task: str, scores: dict[str, Any]) -> Sequence[CardMetric]:
    """Returns the metrics that were measured; of a translation the usual ones where none were."""
    measured: set[str] = set().union(*scores.values())
    if task == "translation":
        from ..evaluation.metrics import DEFAULT_METRICS, metrics_in  # which need an extra

        return list(metrics_in(measured or DEFAULT_METRICS))
    return [
        SimpleNamespace(name=name, label=label, decimals=4, on_hub=True)
        for name, label in _CLASSIFICATION.items()
        if name in measured
    ]


def _speed(entry: dict[str, Any]) -> float | None:
    """Sentences per second, where they or the time are known."""
    sentences = entry.get("sentences")
    seconds = entry.get("seconds")
    speed = sentences / seconds if sentences and seconds else None
    return entry.get("sentences_per_second") or speed


def _plots(results: dict[str, Any], output_dir: Path) -> list[dict[str, str]]:
    """Returns names and titles of a report's plots, those whose files are there."""
    plots = []
    for entry in results.get("plots") or []:
        name = str(entry["name"])
        title = re.sub(r"([\\`*_\[\]()<>])", r"\\\1", " ".join(str(entry["title"]).split()))
        files = [output_dir / PLOTS / f"{name}{end}" for end in (".png", ".svg")]
        if re.fullmatch(r"[\w-]+", name) and all(file.is_file() for file in files):
            plots.append({"name": name, "title": title})
    return plots


def _languages(recipe: dict[str, Any]) -> list[str]:
    """Returns the language codes, source first, as far as they are known."""
    languages = recipe.get("language")
    if languages is not None:
        return [languages] if isinstance(languages, str) else list(languages)
    data = recipe.get("data")
    if not data:
        return []
    if data.get("language_pairs"):
        return list(dict.fromkeys("-".join(data["language_pairs"]).split("-")))
    from ..data import DataArguments  # which takes a second

    return [
        data.get("source_lang", DataArguments.source_lang),
        data.get("target_lang", DataArguments.target_lang),
    ]


def _codes(languages: list[str]) -> list[str]:
    """The languages as ISO 639 codes, which the Hub takes alone: of deu_Latn and de-AT deu, de."""
    codes = (re.match("[a-z]{2,3}(?=[_-]|$)", language.lower()) for language in languages)
    return list(dict.fromkeys(code[0] for code in codes if code))


def _hub_name(name: object) -> str | None:
    """Returns a name where it can only be the Hub's, `owner/name`, and no path of this machine."""
    if not isinstance(name, str) or os.path.exists(name):
        return None
    return name if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name) else None


def public_name(name: object) -> str | None:
    """Returns the public name of a data set or checkpoint: its name on the Hub, or that of its
    folder.
    """
    return None if name is None else (_hub_name(name) or Path(str(name)).name)


def _line(text: object) -> str:
    """Returns a name of a recipe as one line of Markdown, which begins nothing new and holds no
    HTML.
    """
    return " ".join(str(text).split()).replace("<", "&lt;")
