# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Model cards, written from what a run measured."""

import json
import os
import re
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from ..data import DataArguments
from .grid_text import describe_grid
from .locality_text import describe_locality, short_name

TEMPLATE = Path(__file__).parent / "templates" / "model_card.md.jinja"
_METRICS = {"bleu": "BLEU", "chrf": "chrF"}
_EXAMPLES = {
    "de": "Ein Hund läuft durch den Schnee.",
    "en": "A dog runs through the snow.",
    "fr": "Un chien court dans la neige.",
    "ja": "犬が雪の中を走っています。",
    "zh": "一只狗在雪地里奔跑。",
}
_BUILT_IN_EXAMPLES = {
    "de": "Die Zahl ist vierhunderteinundsechzig.",
    "en": "The number is four hundred and sixty-one.",
}
_FAMILY_TAGS = {"csan": "local-attention", "pervasive_attention": "convolutional"}
# Keys of a recipe that say where, not what
_NOT_SHOWN = ("output_dir", "resume", "overwrite", "dry_run")


def write_model_card(output_dir: str | os.PathLike, recipe: dict[str, Any], results: dict[str, Any]) -> Path:
    """Writes `README.md`, the model card, into the folder of a run.

    Args:
        output_dir: The run's folder. Its `config.json` describes the model, where there is one; its
            `training.png` is shown.
        recipe: The recipe as a dict: `name`, `description`, `language`, `license`, `dataset_name`, `init_from` and
            the sections `config`, `data`, `tokenizer`, `training`, `generation`. All may be missing.
        results: The content of `results.json`: `model`, `parameters`, `chosen`, `scores` by split (`bleu`, `chrf`,
            their signatures, `sentences`, `num_beams`, `seconds`, ...), `training`, `environment`. All may be
            missing.

    Returns:
        The path of the card.

    Raises:
        OSError: The card cannot be written.
    """
    output_dir = Path(output_dir)
    card = build_model_card(output_dir, recipe, results)
    path = output_dir / "README.md"
    temporary = output_dir / f".README.{os.getpid()}.md"
    try:
        card.save(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def build_model_card(output_dir: Path, recipe: dict[str, Any], results: dict[str, Any]) -> ModelCard:
    """Makes the card of a run without writing it; the arguments are those of `write_model_card`."""
    config = _read_config(output_dir) or dict(recipe.get("config") or {})
    name = recipe.get("name") or output_dir.resolve().name
    languages = _languages(recipe)
    dataset = _dataset_name(recipe)
    # Weights that nobody has trained here, a converted checkpoint, say, have no results
    scores = results.get("scores") or {}
    source = languages[0] if languages else None
    examples = _BUILT_IN_EXAMPLES if dataset == "numbers" else _EXAMPLES
    return ModelCard.from_template(
        _card_data(recipe, name, languages, dataset, scores),
        template_path=str(TEMPLATE),
        name=name,
        description=recipe.get("description"),
        languages=languages,
        **_architecture(config, results),
        config=config,
        model_id=_model_id(recipe, output_dir),
        example=examples.get(source or "en", _EXAMPLES["en"]),
        dataset=dataset,
        init_from=_public_name(recipe.get("init_from")),
        recipe=_recipe_text(recipe),
        scores=[_score_row(split, entry) for split, entry in scores.items()],
        signatures=_signatures(scores),
        training=results.get("training") or {},
        chosen=(results.get("chosen") or {}).get("weights"),
        parameters=results.get("parameters"),
        environment=results.get("environment") or {},
        picture="training.png" if (output_dir / "training.png").is_file() else None,
    )


def _architecture(config: dict[str, Any], results: dict[str, Any]) -> dict[str, Any]:
    """Returns what the template says of the network: its kind, then its grid or its locality."""
    family = config.get("model_type", "csan")
    if family == "pervasive_attention":
        return {"kind": "Pervasive Attention", "grid": describe_grid(config), "locality": []}
    if family == "csan":
        return {"kind": short_name(config), "grid": None, "locality": describe_locality(config)}
    return {"kind": results.get("model"), "grid": None, "locality": []}


def _card_data(
    recipe: dict[str, Any], name: str, languages: list[str], dataset: str | None, scores: dict[str, Any]
) -> ModelCardData:
    """Returns what the Hub reads: the block at the head of the card."""
    slug = _slug(dataset) if dataset else None
    family = recipe.get("model") or "csan"
    hub_dataset = _hub_name((recipe.get("data") or {}).get("dataset"))
    return ModelCardData(
        language=languages or None,
        license=recipe.get("license") or "unknown",
        library_name="transformers",
        pipeline_tag="translation",
        tags=["translation", family, _FAMILY_TAGS.get(family, family)],
        base_model=_hub_name(recipe.get("init_from")),
        datasets=[hub_dataset] if hub_dataset else None,
        metrics=list(_METRICS),
        model_name=name,
        eval_results=[
            EvalResult(
                task_type="translation",
                task_name="Translation" + (f" {'-'.join(languages)}" if languages else ""),
                dataset_type=hub_dataset or slug or "unknown",
                dataset_name=dataset or "unknown",
                dataset_split=split,
                metric_type=metric,
                metric_name=_METRICS[metric],
                metric_value=round(float(entry[metric]), 2),
                metric_args={"signature": entry[f"{metric}_signature"]} if f"{metric}_signature" in entry else None,
            )
            for split, entry in scores.items()
            for metric in _METRICS
            if entry.get(metric) is not None
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
    return [data.get("source_lang", DataArguments.source_lang), data.get("target_lang", DataArguments.target_lang)]


def _dataset_name(recipe: dict[str, Any]) -> str | None:
    """Returns what the card calls the data."""
    data = recipe.get("data") or {}
    name = data.get("dataset") or data.get("data_dir")
    return recipe.get("dataset_name") or _public_name(name)


def _hub_name(name: Any) -> str | None:
    """Returns a name where it can only be the Hub's, `owner/name`, and no path of this machine."""
    is_name = isinstance(name, str) and re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name) is not None
    return name if is_name and not os.path.exists(name) else None


def _public_name(name: Any) -> str | None:
    """Returns what a card may say of a data set or checkpoint: its name on the Hub, or that of its folder."""
    return None if name is None else (_hub_name(name) or Path(str(name)).name)


def _model_id(recipe: dict[str, Any], output_dir: Path) -> str:
    """Returns the name under which the card's example loads the model."""
    hub_id = (recipe.get("training") or {}).get("hub_model_id")
    if hub_id:
        return str(hub_id)
    return output_dir.name if output_dir.is_absolute() else output_dir.as_posix()


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _recipe_text(recipe: dict[str, Any]) -> str:
    shown = {key: value for key, value in recipe.items() if key not in _NOT_SHOWN and value not in (None, {})}
    shown = _without_folders(shown)
    return yaml.safe_dump(shown, sort_keys=False, allow_unicode=True).strip() if shown else ""


def _without_folders(value: Any) -> Any:
    """Returns a recipe in which absolute paths, which say something of one machine alone, have lost their folders."""
    if isinstance(value, dict):
        return {key: _without_folders(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_without_folders(entry) for entry in value]
    return Path(value).name if isinstance(value, str) and os.path.isabs(value) else value


def _score_row(split: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Returns one line of the card's table; a speed where the time is known."""
    sentences, seconds = entry.get("sentences"), entry.get("seconds")
    speed = sentences / seconds if sentences and seconds else None
    return {"split": split, **entry, "speed": speed}


def _signatures(scores: dict[str, Any]) -> dict[str, list[str]]:
    """Returns the distinct sacreBLEU signatures of each metric, in order of appearance."""
    found = {
        name: dict.fromkeys(filter(None, (entry.get(f"{metric}_signature") for entry in scores.values())))
        for metric, name in _METRICS.items()
    }
    return {name: list(signatures) for name, signatures in found.items() if signatures}
