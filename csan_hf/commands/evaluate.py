# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Translates a test set and scores it; writes the hypotheses in order and a JSON of scores.

`--hypotheses FILE` scores an existing translation instead. Under `accelerate launch` or torchrun the processes
share the work.
"""

import argparse
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from csan_hf.command_line import script
from csan_hf.evaluation import score_by_length, score_translations, translate
from csan_hf.evaluation.loading import DTYPES, launched_processes, load_translation_model
from csan_hf.evaluation.metrics import DEFAULT_METRICS, CorpusMetric, load_metric, metric_names, metrics_in
from csan_hf.evaluation.metrics.sacrebleu_tokenizers import check_sacrebleu_tokenizer
from csan_hf.evaluation.significance import BOOTSTRAP_SAMPLES
from csan_hf.files import check_writable, open_lines, path_inside, write_json, write_lines
from csan_hf.training.recipe import Recipe, load_recipe


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="csan-hf evaluate", description=__doc__)
    parser.add_argument("--model", help="checkpoint folder or Hub name")
    parser.add_argument(
        "--hypotheses",
        help="existing translations to score, one per line (- = standard input); with --source and --reference",
    )
    data = parser.add_argument_group("data: a recipe's held-out splits, or two files")
    data.add_argument("--recipe", type=Path, help="recipe whose data to use (default: the model's recipe.yaml)")
    data.add_argument("--split", action="append", help="split of the recipe, may be repeated (default: all but train)")
    data.add_argument("--source", help="source sentences, one per line (may be .gz)")
    data.add_argument("--reference", help="reference translations, one per line (may be .gz)")
    parser.add_argument("--output_dir", type=Path, help="folder for hypotheses and scores (default: MODEL/evaluation)")
    parser.add_argument("--num_beams", type=int, help="beams (default: the model's)")
    parser.add_argument("--max_length", type=int, help="most target tokens (default: the model's)")
    parser.add_argument("--length_penalty", type=float, help="above 0 favours long outputs (default: the model's)")
    parser.add_argument("--bleu_tokenize", help="sacreBLEU tokenizer: 13a, zh, char... (default: the recipe's)")
    parser.add_argument(
        "--metrics",
        nargs="+",
        choices=metric_names(),
        metavar="METRIC",
        help=f"some of {', '.join(metric_names())} (default: the recipe's, or {' '.join(DEFAULT_METRICS)})",
    )
    parser.add_argument("--by_length", action="store_true", help="also score groups of sentences of similar length")
    parser.add_argument("--max_batch_tokens", type=int, default=4096, help="source tokens in a batch (%(default)s)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1... (default: the accelerator if there is one)")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="float32", help="(default: %(default)s)")
    parser.add_argument("--trust_remote_code", action="store_true", help="run model code from the checkpoint")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    options = parser.parse_args(arguments)
    if (options.source is None) != (options.reference is None):
        parser.error("--source and --reference go together")
    if (options.model is None) == (options.hypotheses is None):
        parser.error("give --model, or --hypotheses to score an existing translation")
    if options.hypotheses is not None and options.source is None:
        parser.error("--hypotheses needs --source and --reference")
    if options.source is not None and (options.recipe is not None or options.split):
        parser.error("give either --source and --reference, or --recipe and --split")
    return options


def load_test_sets(
    options: argparse.Namespace,
) -> tuple[dict[str, tuple[Collection[str], Collection[str]]], Recipe | None]:
    """Returns {split: (sources, references)}, and the recipe where they come from one."""
    from csan_hf.data import load_translation_dataset

    if options.source is not None:
        sources, references = open_lines(options.source), open_lines(options.reference)
        if len(sources) != len(references):
            raise ValueError(
                f"{options.source} has {len(sources)} lines and {options.reference} has {len(references)}: "
                "they must have the same number."
            )
        return {Path(options.source).name.split(".")[0]: (sources, references)}, None
    path = options.recipe or Path(options.model) / "recipe.yaml"
    if not path.is_file():
        raise ValueError(f"There is no recipe {path}: pass --recipe, or --source and --reference.")
    recipe = load_recipe(path)
    splits, _ = load_translation_dataset(recipe.data_arguments(), options.split)
    wanted = options.split or [name for name in splits if name != "train"]
    return {name: (list(splits[name]["source"]), list(splits[name]["target"])) for name in wanted}, recipe


def score_hypotheses(options: argparse.Namespace) -> dict[str, dict]:
    """Scores the lines of a file."""
    [(name, (sources, references))] = load_test_sets(options)[0].items()
    hypotheses = open_lines(options.hypotheses)
    if len(hypotheses) != len(references):
        raise ValueError(
            f"{options.hypotheses} has {len(hypotheses)} lines and {options.reference} has {len(references)}: "
            "they must have the same number."
        )
    scores = {name: score(options, sources, hypotheses, references)}
    if options.output_dir is not None:
        write_json(options.output_dir / "scores.json", {"hypotheses": str(options.hypotheses), "scores": scores})
    print_table(scores)
    return scores


def score(
    options: argparse.Namespace,
    sources: Collection[str],
    hypotheses: Collection[str],
    references: Collection[str],
    recipe: Recipe | None = None,
) -> dict:
    """Scores hypotheses by the metrics of the command line, or of the recipe."""
    tokenize = options.bleu_tokenize or (recipe.bleu_tokenize if recipe is not None else None)
    metrics = options.metrics or (recipe is not None and recipe.training.get("metrics")) or DEFAULT_METRICS
    chosen: Any = {"metrics": metrics, "tokenize": tokenize, "progress": not options.quiet}
    scores = {**score_translations(hypotheses, references, sources=sources, **chosen), "sentences": len(sources)}
    if options.by_length:
        scores["by_length"] = score_by_length(sources, hypotheses, references, samples=BOOTSTRAP_SAMPLES, **chosen)
    return scores


def evaluate(options: argparse.Namespace) -> dict[str, dict]:
    """Translates the test sets with a model and scores them."""
    processes = launched_processes(options.device)
    check_sacrebleu_tokenizer(options.bleu_tokenize, "--bleu_tokenize")
    for metric in options.metrics or ():
        load_metric(metric).check_requirements()
    sets, recipe = load_test_sets(options)
    output = options.output_dir or path_inside(options.model, "evaluation")
    files = {name: path_inside(output, f"{name or 'test'}.hypotheses.txt") for name in sets}
    table = path_inside(output, "scores.json")
    for path in (*files.values(), table):
        check_writable(path)
    model, tokenizers = load_translation_model(
        options.model,
        device=options.device if processes is None else str(processes.device),
        dtype=options.dtype,
        trust_remote_code=options.trust_remote_code,
        progress=not options.quiet,
    )
    arguments = {name: getattr(options, name) for name in ("num_beams", "max_length", "length_penalty")}
    scores: dict[str, dict] = {}
    for name, (sources, references) in sets.items():
        start = time.time()
        hypotheses = translate(
            model,
            tokenizers,
            list(sources),
            max_batch_tokens=options.max_batch_tokens,
            progress=not options.quiet,
            processes=processes,
            **arguments,
        )
        seconds = time.time() - start
        scores[name] = {
            **score(options, sources, hypotheses, references, recipe),
            "num_beams": options.num_beams or model.generation_config.num_beams,
            "seconds": round(seconds, 2),
        }
        if processes is None or processes.is_main_process:
            write_lines(files[name], hypotheses)
    if processes is not None:
        processes.destroy_process_group()
        if not processes.is_main_process:
            return scores
    write_json(table, {"model": str(options.model), "scores": scores})
    print_table(scores)
    print(f"Hypotheses and scores.json are in {output}.")
    return scores


def print_table(scores: dict[str, dict]) -> None:
    """Prints a line of scores for each test set."""
    metrics = list(metrics_in(next(iter(scores.values()))))
    width = max(5, *(len(name) for name in scores))
    print(
        f"{'split':<{width}}  sentences  {'  '.join(_column(metric.label, metric) for metric in metrics)}  sentences/s"
    )
    for name, entry in scores.items():
        speed = f"{entry['sentences'] / max(entry['seconds'], 0.01):,.1f}" if "seconds" in entry else "-"
        values = "  ".join(_column(f"{entry[metric.name]:.{metric.decimals}f}", metric) for metric in metrics)
        print(f"{name:<{width}}  {entry['sentences']:>9,}  {values}  {speed:>11}")
    for metric in metrics:
        if signature := next(iter(scores.values())).get(f"{metric.name}_signature"):
            print(f"{metric.label}: {signature}")
    for name, entry in scores.items():
        if "by_length" in entry:
            print_lengths(name, entry["by_length"], metrics)


def _column(text: str, metric: type[CorpusMetric]) -> str:
    return text.rjust(max(6, len(metric.label)))


def print_lengths(name: str, groups: list[dict], metrics: list[type[CorpusMetric]]) -> None:
    """Prints the scores of groups of similar length as a Markdown table."""
    print(f"\n{name}, by words in the source; in brackets: 95% intervals by bootstrap\n")
    print(f"| words in the source | sentences | reference | hypothesis | {' | '.join(m.label for m in metrics)} |")
    print("| --- |" + " ---: |" * (3 + len(metrics)))
    for group in groups:
        cells = [f"{group['shortest']} to {group['longest']}", f"{group['sentences']:,}"]
        cells += [f"{group[f'{side}_words']:.1f}" for side in ("reference", "hypothesis")]
        for metric in metrics:
            low, high = (f"{bound:.{metric.decimals}f}" for bound in group[f"{metric.name}_interval"])
            cells.append(f"{group[metric.name]:.{metric.decimals}f} [{low}, {high}]")
        print(f"| {' | '.join(cells)} |")


@script()
def main(arguments: list[str]) -> None:
    """Runs `csan-hf evaluate`."""
    options = parse_arguments(arguments)
    if options.hypotheses is not None:
        score_hypotheses(options)
    else:
        evaluate(options)
