# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""`csan-hf evaluate`."""

import json
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from csan_hf.evaluation import score_by_length, score_translations, translate
from csan_hf.evaluation.forced import perplexity, score_forced
from csan_hf.evaluation.loading import launched_processes, load_translation_model
from csan_hf.evaluation.metrics import (
    DEFAULT_METRICS,
    CorpusMetric,
    check_sacrebleu_tokenizer,
    load_metric,
    metrics_in,
)
from csan_hf.evaluation.significance import BOOTSTRAP_SAMPLES
from csan_hf.evaluation.translate import search_name
from csan_hf.text_files import check_writable, path_inside, write_json, write_lines
from csan_hf.training.recipe import Recipe, load_recipe

from . import Dtype, PositiveInt, open_parallel

TestSet = tuple[Collection[str], Collection[str]]


def evaluate(
    *,
    model: list[str] | None = None,
    hypotheses: str | None = None,
    recipe: Path | None = None,
    split: list[str] | None = None,
    source: str | None = None,
    reference: str | None = None,
    output_dir: Path | None = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
    num_beams: PositiveInt | None = None,
    max_length: PositiveInt | None = None,
    max_new_tokens: PositiveInt | None = None,
    length_penalty: float | None = None,
    truncation: bool = False,
    bleu_tokenize: str | None = None,
    metrics: list[str] | None = None,
    by_length: bool = False,
    forced: bool = False,
    max_batch_tokens: PositiveInt = 4096,
    device: str | None = None,
    dtype: Dtype = "float32",
    trust_remote_code: bool = False,
    quiet: bool = False,
) -> None:
    """Translates a test set and scores it; writes the hypotheses in order and a JSON of scores.

    The data is a recipe's held-out splits, or two files. `--hypotheses FILE` scores an existing
    translation instead; `--forced` asks how probable the model finds the references. Several models
    are an ensemble: their probabilities are averaged. Under `accelerate launch` or torchrun the
    processes share the work.

    Args:
        model: checkpoint folder or Hub name; several = an ensemble
        hypotheses: existing translations to score, one per line (- = standard input); with --source
            and --reference
        recipe: recipe whose data to use (default: the model's recipe.yaml)
        split: splits of the recipe (default: all but train)
        source: source sentences, one per line (may be .gz)
        reference: reference translations, one per line (may be .gz)
        output_dir: folder for hypotheses and scores (default: MODEL/evaluation; of an ensemble it
            must be given)
        bleu_tokenize: sacreBLEU tokenizer: 13a, zh, char... (default: the recipe's)
        metrics: bleu, chrf, ter, ...; an unknown name lists all (default: the recipe's, or bleu
            chrf)
        by_length: also score groups of sentences of similar length
        forced: translate nothing: write the log-probability of each reference and the perplexity of
            all
    """
    by_recipe = recipe is not None or bool(split)
    misplaced = hypotheses is not None if source is None else by_recipe
    names = model or []
    if (
        bool(names) == (hypotheses is not None)
        or (source is None) != (reference is None)
        or misplaced
    ):
        raise ValueError(
            "give --model, or --hypotheses; and --source with --reference, or --recipe, --split "
            "of --model"
        )
    if len(names) > 1 and output_dir is None:
        raise ValueError("An ensemble has no folder of its own: pass --output_dir.")
    if forced and (hypotheses is not None or metrics or by_length or num_beams):
        raise ValueError(
            "--forced translates nothing: leave out --hypotheses, --metrics, --by_length and "
            "--num_beams"
        )
    check_sacrebleu_tokenizer(bleu_tokenize, "--bleu_tokenize")
    for metric in metrics or ():
        load_metric(metric).check_requirements()
    loaded: Recipe | None = None
    if source is not None and reference is not None:
        sources, references, *lines = open_parallel(
            source, reference, *([] if hypotheses is None else [hypotheses])
        )
        sets: dict[str, TestSet] = {Path(source).name.split(".")[0]: (sources, references)}
    else:
        loaded, sets = _recipe_splits(recipe or Path(names[0]) / "recipe.yaml", split)
    chosen: dict[str, Any] = {
        "metrics": metrics
        or (loaded is not None and loaded.training.get("metrics"))
        or DEFAULT_METRICS,
        "tokenize": bleu_tokenize or (loaded.bleu_tokenize if loaded is not None else None),
        "progress": not quiet,
    }

    def score(
        sources: Collection[str], found: Collection[str], references: Collection[str]
    ) -> dict[str, Any]:
        scores = {
            **score_translations(found, references, sources=sources, **chosen),
            "sentences": len(sources),
        }
        if by_length:
            scores["by_length"] = score_by_length(
                sources, found, references, samples=BOOTSTRAP_SAMPLES, **chosen
            )
        return scores

    if hypotheses is not None:
        scores = {name: score(sources, lines[0], references) for name in sets}
        if output_dir is not None:
            write_json(output_dir / "scores.json", {"hypotheses": hypotheses, "scores": scores})
        _print_table(scores)
        return
    output = output_dir or path_inside(names[0], "evaluation")
    loading = {
        "device": device,
        "dtype": dtype,
        "trust_remote_code": trust_remote_code,
        "progress": not quiet,
    }
    languages = {"src_lang": source_lang, "tgt_lang": target_lang}
    working: dict[str, Any] = {
        "max_batch_tokens": max_batch_tokens,
        "progress": not quiet,
        **languages,
    }
    if forced:
        _force(names, sets, output, loading, working)
        return
    _translate_and_score(
        names,
        sets,
        score,
        output,
        loading=loading,
        translation={
            **working,
            "num_beams": num_beams,
            "max_length": max_length,
            "max_new_tokens": max_new_tokens,
            "length_penalty": length_penalty,
            "truncation": truncation or None,
        },
    )


def _recipe_splits(path: Path, split: list[str] | None) -> tuple[Recipe, dict[str, TestSet]]:
    from csan_hf.data import load_translation_dataset

    if not path.is_file():
        raise ValueError(f"There is no recipe {path}: pass --recipe, or --source and --reference.")
    recipe = load_recipe(path)
    splits, _ = load_translation_dataset(recipe.data_arguments(), split)
    wanted = split or [name for name in splits if name != "train"]
    return recipe, {
        name: (list(splits[name]["source"]), list(splits[name]["target"])) for name in wanted
    }


def _translate_and_score(
    names: list[str],
    sets: dict[str, TestSet],
    score: Callable[..., dict[str, Any]],
    output: Path,
    *,
    loading: dict[str, Any],
    translation: dict[str, Any],
) -> None:
    processes = launched_processes(loading["device"])
    files = {split: path_inside(output, f"{split or 'test'}.hypotheses.txt") for split in sets}
    table = path_inside(output, "scores.json")
    for path in (*files.values(), table):
        check_writable(path)
    if processes is not None:
        loading["device"] = str(processes.device)
    model, tokenizers = load_translation_model(names, **loading)
    scores: dict[str, dict] = {}
    for split, (sources, references) in sets.items():
        start = time.time()
        hypotheses = translate(model, tokenizers, list(sources), processes=processes, **translation)
        seconds = time.time() - start
        scores[split] = {
            **score(sources, hypotheses, references),
            "num_beams": translation["num_beams"] or model.generation_config.num_beams,
            "seconds": round(seconds, 2),
        }
        if processes is None or processes.is_main_process:
            write_lines(files[split], hypotheses)
    if processes is not None:
        processes.destroy_process_group()
        if not processes.is_main_process:
            return
    write_json(table, {"model": _told(names), "scores": scores})
    _print_table(scores)
    print(f"Hypotheses and scores.json are in {output}.")


def _force(
    names: list[str],
    sets: dict[str, TestSet],
    output: Path,
    loading: dict[str, Any],
    working: dict[str, Any],
) -> None:
    """Scores the references by the model, and writes the scores of each line and of all."""
    processes = launched_processes(loading["device"])
    for file in (*(f"{split}.forced.jsonl" for split in sets), "forced.json"):
        check_writable(path_inside(output, file))
    if processes is not None:
        loading["device"] = str(processes.device)
    model, tokenizers = load_translation_model(names, **loading)
    found = {
        split: score_forced(model, tokenizers, *map(list, pair), processes=processes, **working)
        for split, pair in sets.items()
    }
    if processes is not None:
        processes.destroy_process_group()
        if not processes.is_main_process:
            return
    table = {}
    for split, lines in found.items():
        write_lines(path_inside(output, f"{split}.forced.jsonl"), map(json.dumps, lines))
        totals = {key: sum(line[key] for line in lines) for key in ("tokens", "log_probability")}
        table[split] = {"sentences": len(lines), **totals, "perplexity": perplexity(lines)}
    write_json(path_inside(output, "forced.json"), {"model": _told(names), "forced": table})
    width = max(5, *map(len, table))
    print(f"{'split':<{width}}  sentences    tokens  log-probability  perplexity")
    for split, row in table.items():
        numbers = (
            f"{row['tokens']:>8,}  {row['log_probability']:>15,.1f}  {row['perplexity']:>10,.3f}"
        )
        print(f"{split:<{width}}  {row['sentences']:>9,}  {numbers}")
    print(f"Scores by line and forced.json are in {output}.")


def _told(names: list[str]) -> str | list[str]:
    return names if len(names) > 1 else names[0]


def _print_table(scores: dict[str, dict]) -> None:
    """Prints a line of scores for each test set."""
    first = next(iter(scores.values()))
    metrics = list(metrics_in(first))
    width = max(5, *map(len, scores))
    widths = [max(6, len(metric.label)) for metric in metrics]
    columns = list(zip(metrics, widths, strict=True))
    labels = [f"{metric.label:>{each}} " for metric, each in columns]
    print(f"{'split':<{width}}  sentences ", *labels, "search   sentences/s")
    for name, entry in scores.items():
        speed = (
            f"{entry['sentences'] / max(entry['seconds'], 0.01):,.1f}"
            if "seconds" in entry
            else "-"
        )
        values = [f"{entry[metric.name]:>{each}.{metric.decimals}f} " for metric, each in columns]
        search = search_name(entry["num_beams"]) if "num_beams" in entry else "-"
        print(f"{name:<{width}}  {entry['sentences']:>9,} ", *values, f"{search:<7}  {speed:>11}")
    for metric in metrics:
        if signature := first.get(f"{metric.name}_signature"):
            print(f"{metric.label}: {signature}")
    for name, entry in scores.items():
        if "by_length" in entry:
            _print_lengths(name, entry["by_length"], metrics)


def _print_lengths(name: str, groups: list[dict], metrics: list[type[CorpusMetric]]) -> None:
    """Prints the scores of groups of similar length as a Markdown table."""
    print(f"\n{name}, by words in the source; in brackets: 95% intervals by bootstrap\n")
    print(
        "| words in the source | sentences | reference | hypothesis | "
        f"{' | '.join(m.label for m in metrics)} |"
    )
    print("| --- |" + " ---: |" * (3 + len(metrics)))
    for group in groups:
        cells = [f"{group['shortest']} to {group['longest']}", f"{group['sentences']:,}"]
        cells += [f"{group[f'{side}_words']:.1f}" for side in ("reference", "hypothesis")]
        for metric in metrics:
            low, high = (
                f"{bound:.{metric.decimals}f}" for bound in group[f"{metric.name}_interval"]
            )
            cells.append(f"{group[metric.name]:.{metric.decimals}f} [{low}, {high}]")
        print(f"| {' | '.join(cells)} |")
