#!/usr/bin/env python
"""Translates a test set and scores it; writes the hypotheses in order and a JSON of scores.

`--hypotheses FILE` scores a translation that is there already. Under `accelerate launch` or torchrun the processes
share the work.
"""

import argparse
import sys
import time
from pathlib import Path

from csan_hf.command_line import script
from csan_hf.evaluation import score_by_length, score_translations, translate
from csan_hf.evaluation.loading import DTYPES, launched_processes, load_translation_model
from csan_hf.files import path_inside, read_lines, write_json, write_lines


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/evaluate.py", description=__doc__)
    parser.add_argument("--model", help="checkpoint folder or Hub name")
    parser.add_argument(
        "--hypotheses",
        help="translations to score instead, one a line (- = standard input); with --source and --reference",
    )
    data = parser.add_argument_group("data: a recipe's held-out splits, or two files")
    data.add_argument("--recipe", type=Path, help="recipe whose data to use (default: the model's recipe.yaml)")
    data.add_argument("--split", action="append", help="split of the recipe, may be repeated (default: all but train)")
    data.add_argument("--source", help="source sentences, one a line (.gz may be given)")
    data.add_argument("--reference", help="reference translations, one a line (.gz may be given)")
    parser.add_argument("--output_dir", type=Path, help="folder for hypotheses and scores (default: MODEL/evaluation)")
    parser.add_argument("--num_beams", type=int, help="beams (default: the model's)")
    parser.add_argument("--max_length", type=int, help="most target tokens (default: the model's)")
    parser.add_argument("--length_penalty", type=float, help="above 0 favours long beams (default: the model's)")
    parser.add_argument("--bleu_tokenize", help="sacreBLEU tokenizer: 13a, zh, char... (default: the recipe's)")
    parser.add_argument("--by_length", action="store_true", help="also score groups of sentences of like lengths")
    parser.add_argument("--max_batch_tokens", type=int, default=4096, help="source tokens in a batch (%(default)s)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1... (default: the accelerator if there is one)")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="float32", help="(default: %(default)s)")
    parser.add_argument("--trust_remote_code", action="store_true", help="run model code from the checkpoint")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    options = parser.parse_args(arguments)
    if (options.source is None) != (options.reference is None):
        parser.error("--source and --reference go together")
    if (options.model is None) == (options.hypotheses is None):
        parser.error("give --model, or --hypotheses to score a translation that is there")
    if options.hypotheses is not None and options.source is None:
        parser.error("--hypotheses needs --source and --reference")
    if options.source is not None and (options.recipe is not None or options.split):
        parser.error("give either --source and --reference, or --recipe and --split")
    return options


def load_test_sets(options: argparse.Namespace) -> tuple[dict[str, tuple[list[str], list[str]]], str | None]:
    """Returns {split: (sources, references)} and the recipe's sacreBLEU tokenizer."""
    from csan_hf.data import load_translation_dataset
    from csan_hf.training.recipe import load_recipe

    if options.source is not None:
        sources, references = list(read_lines(options.source)), list(read_lines(options.reference))
        if len(sources) != len(references):
            raise ValueError(
                f"{options.source} has {len(sources)} lines and {options.reference} has {len(references)}: "
                "they must have as many."
            )
        return {Path(options.source).name.split(".")[0]: (sources, references)}, None
    path = options.recipe or Path(options.model) / "recipe.yaml"
    if not path.is_file():
        raise ValueError(f"There is no recipe {path}: pass --recipe, or --source and --reference.")
    recipe = load_recipe(path)
    splits, _ = load_translation_dataset(recipe.data_arguments(), options.split)
    wanted = options.split or [name for name in splits if name != "train"]
    sets = {name: (list(splits[name]["source"]), list(splits[name]["target"])) for name in wanted}
    return sets, recipe.bleu_tokenize


def score_hypotheses(options: argparse.Namespace) -> dict[str, dict]:
    """Scores the lines of a file."""
    [(name, (sources, references))] = load_test_sets(options)[0].items()
    hypotheses = list(read_lines(options.hypotheses))
    if len(hypotheses) != len(references):
        raise ValueError(
            f"{options.hypotheses} has {len(hypotheses)} lines and {options.reference} has {len(references)}: "
            "they must have as many."
        )
    scores = {name: score(options, sources, hypotheses, references, options.bleu_tokenize)}
    if options.output_dir is not None:
        write_json(options.output_dir / "scores.json", {"hypotheses": str(options.hypotheses), "scores": scores})
    print_table(scores)
    return scores


def score(
    options: argparse.Namespace,
    sources: list[str],
    hypotheses: list[str],
    references: list[str],
    tokenize: str | None,
) -> dict:
    scores = {**score_translations(hypotheses, references, tokenize=tokenize), "sentences": len(sources)}
    if options.by_length:
        scores["by_length"] = score_by_length(sources, hypotheses, references, tokenize=tokenize)
    return scores


def evaluate(options: argparse.Namespace) -> dict[str, dict]:
    processes = launched_processes(options.device)
    sets, bleu_tokenize = load_test_sets(options)
    output = options.output_dir or path_inside(options.model, "evaluation")
    files = {name: path_inside(output, f"{name or 'test'}.hypotheses.txt") for name in sets}
    table = path_inside(output, "scores.json")
    model, tokenizers = load_translation_model(
        options.model,
        device=options.device if processes is None else str(processes.device),
        dtype=options.dtype,
        trust_remote_code=options.trust_remote_code,
    )
    arguments = {name: getattr(options, name) for name in ("num_beams", "max_length", "length_penalty")}
    scores: dict[str, dict] = {}
    for name, (sources, references) in sets.items():
        start = time.time()
        hypotheses = translate(
            model,
            tokenizers,
            sources,
            max_batch_tokens=options.max_batch_tokens,
            progress=not options.quiet,
            processes=processes,
            **arguments,
        )
        seconds = time.time() - start
        scores[name] = {
            **score(options, sources, hypotheses, references, options.bleu_tokenize or bleu_tokenize),
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
    width = max(5, *(len(name) for name in scores))
    print(f"{'split':<{width}}  sentences    BLEU    chrF  sentences/s")
    for name, entry in scores.items():
        speed = f"{entry['sentences'] / max(entry['seconds'], 0.01):,.1f}" if "seconds" in entry else "-"
        print(f"{name:<{width}}  {entry['sentences']:>9,}  {entry['bleu']:>6.2f}  {entry['chrf']:>6.2f}  {speed:>11}")
    print(f"BLEU: {next(iter(scores.values()))['bleu_signature']}")
    for name, entry in scores.items():
        if "by_length" in entry:
            print_lengths(name, entry["by_length"])


def print_lengths(name: str, groups: list[dict]) -> None:
    print(f"\n{name}, by words in the source\n")
    print("| words in the source | sentences | reference | hypothesis | BLEU | chrF |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for group in groups:
        print(
            f"| {group['shortest']} to {group['longest']} | {group['sentences']:,} | {group['reference_words']:.1f} | "
            f"{group['hypothesis_words']:.1f} | {group['bleu']:.2f} | {group['chrf']:.2f} |"
        )


@script()
def main(arguments: list[str]) -> None:
    options = parse_arguments(arguments)
    if options.hypotheses is not None:
        score_hypotheses(options)
    else:
        evaluate(options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
