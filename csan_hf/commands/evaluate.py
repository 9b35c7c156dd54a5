# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""`csan-hf evaluate`."""

import json
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from csan_hf.data import load_translation_dataset
from csan_hf.data.documents import document_lines, read_documents, read_translations
from csan_hf.evaluation.corpus_translation import best_texts
from csan_hf.evaluation.forced import perplexity, score_forced
from csan_hf.evaluation.launched import launched_processes
from csan_hf.evaluation.loading import load_translation_model, loaded_translator
from csan_hf.evaluation.metrics import (
    DEFAULT_METRICS,
    CorpusMetric,
    check_sacrebleu_tokenizer,
    check_several_references,
    load_metric,
    metrics_in,
)
from csan_hf.evaluation.scores import (
    score_by_length,
    score_lines,
    score_table,
    score_translations,
)
from csan_hf.evaluation.significance import BOOTSTRAP_SAMPLES
from csan_hf.training.recipe import Recipe, load_recipe
from csan_hf_runtime import is_main_process
from csan_hf_runtime.command_line.common import ModelOptions, PositiveInt
from csan_hf_runtime.options import CorpusOptions
from csan_hf_runtime.text_files import (
    VARIANTS,
    check_folder_or_name,
    check_writable,
    open_parallel,
    path_inside,
    uncompressed_name,
    write_json,
    write_lines,
)

from . import join_references

TestSet = tuple[Collection[str], Collection[str]]
"""Sources and references."""


def evaluate(
    *,
    model: list[str] | None = None,
    hypotheses: str | None = None,
    recipe: Path | None = None,
    split: list[str] | None = None,
    source: str | None = None,
    reference: list[str] | None = None,
    documents: bool = False,
    output_dir: Path | None = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
    translation: CorpusOptions,
    bleu_tokenize: str | None = None,
    metrics: list[str] | None = None,
    by_length: bool = False,
    forced: bool = False,
    max_batch_tokens: PositiveInt = 4096,
    loading: ModelOptions,
) -> None:
    """Translates a test set and scores it.

        csan-hf evaluate --model runs/numbers
        csan-hf evaluate --model runs/numbers --source test.en --reference test.de
        csan-hf evaluate --hypotheses output.de --source test.en --reference test.de

    The first translates all splits of the model's recipe but train, the second two files; the third
    scores translations that exist already. Scores are printed; the hypotheses, line by line, and
    scores.json are written to --output_dir.

    Several models translate as an ensemble: their probabilities are averaged. Under `accelerate
    launch` or torchrun the processes share the work.

    Args:
        model: checkpoint folder or Hub name; several = an ensemble
        hypotheses: existing translations to score, one per line (- = standard input); needs
            --source and --reference
        recipe: recipe with the data (default: recipe.yaml in the model's folder)
        split: splits of the recipe, such as validation or test (default: all but train)
        source: source sentences, one per line (may be compressed)
        reference: reference translations, one per line (may be compressed); several files = as many
            references for each line
        documents: the files hold documents, a blank line between them, which are translated and
            scored whole, and scored line by line
        output_dir: folder for hypotheses and scores (default: MODEL/evaluation, or none with
            --hypotheses; required for an ensemble)
        bleu_tokenize: sacreBLEU tokenizer: 13a, zh, char... (default: the recipe's, or chosen by
            the script of the references)
        metrics: bleu, chrf, ter, ...; an unknown name lists all (default: the recipe's, or bleu
            chrf)
        by_length: also score groups of sentences of similar length
        forced: score the references instead of translating: write the log-probability of each and
            the perplexity of all
    """
    names = model or []
    has_files = source is not None
    if bool(names) == bool(hypotheses):
        raise ValueError("give --model, or --hypotheses, and not both.")
    if has_files != bool(reference):
        raise ValueError("--source and --reference belong together: give both.")
    if has_files and (recipe or split):
        raise ValueError("--source and --reference need no recipe: leave out --recipe and --split.")
    if documents and not has_files:
        raise ValueError("--documents needs --source and --reference; a recipe says it itself.")
    if hypotheses is not None and not has_files:
        raise ValueError("--hypotheses needs --source and --reference.")
    if len(names) > 1 and output_dir is None:
        raise ValueError("An ensemble has no folder of its own: pass --output_dir.")
    if forced and len(reference or ()) > 1:
        raise ValueError("--forced scores one reference: give one --reference.")
    unused = translation.changed()
    if forced:
        scoring_options = {
            "hypotheses": hypotheses,
            "metrics": metrics,
            "by_length": by_length,
            "bleu_tokenize": bleu_tokenize,
        }
        unused += [name for name, value in scoring_options.items() if value]
    if unused and (forced or hypotheses is not None):
        option = "--forced" if forced else "--hypotheses"
        raise ValueError(f"{option} translates nothing: leave out --{', --'.join(unused)}.")
    if source is not None and reference is not None:
        read = _read_documents if documents else _read_files
        tests = read(source, reference, hypotheses)
        own_recipe = Path(names[0]) / "recipe.yaml" if names else None
        if own_recipe is not None and own_recipe.is_file():
            tests = _scored_as(tests, load_recipe(own_recipe))
    else:
        tests = _read_recipe(recipe or Path(names[0]) / "recipe.yaml", split)
    scoring = _scoring(
        tests, metrics, bleu_tokenize, by_length=by_length, progress=not loading.quiet
    )
    if hypotheses is not None:
        _score_file(hypotheses, tests, output_dir, scoring)
        return
    options: dict[str, Any] = {
        "max_batch_tokens": max_batch_tokens,
        "progress": not loading.quiet,
    }
    if forced:
        options |= {"src_lang": source_lang, "tgt_lang": target_lang}
        evaluated = _forced(names, tests, loading, options)
    else:
        options |= {"source_lang": source_lang, "target_lang": target_lang, **asdict(translation)}
        evaluated = _translated(names, tests, loading, options, scoring)
    _write(evaluated, names, tests, output_dir, forced=forced)


@dataclass(frozen=True)
class _TestSets:
    """Translations to score.

    Attributes:
        sets: The test sets by their names.
        paths: The files that they are read from.
        translations: Those that exist already.
        metrics: Those of the recipe.
        bleu_tokenize: That of the recipe.
        has_several_references: Whether a source has more than one.
        documents: Whether sources are documents.
    """

    sets: dict[str, TestSet]
    paths: Sequence[str] = ()
    translations: Collection[str] = ()
    metrics: list[str] | None = None
    bleu_tokenize: str | None = None
    has_several_references: bool = False
    documents: bool = False

    def __post_init__(self) -> None:
        for name, (sources, _) in self.sets.items():
            if not len(sources):
                place = self.paths[0] if self.paths else name
                raise ValueError(f"{place} is empty: there is nothing to score.")


def _read_files(source: str, reference: list[str], hypotheses: str | None) -> _TestSets:
    paths = [source, *reference]
    if hypotheses is not None:
        paths.append(hypotheses)
    sources, *texts = open_parallel(*paths)
    translations: Collection[str] = ()
    if hypotheses is not None:
        translations = texts.pop()
    return _TestSets(
        {_name_of_set(source): (sources, join_references(texts))},
        paths=paths,
        translations=translations,
        has_several_references=len(reference) > 1,
    )


def _read_documents(source: str, reference: list[str], hypotheses: str | None) -> _TestSets:
    if len(reference) > 1:
        raise ValueError("Documents have one reference: give one --reference.")
    translations: Collection[str] = ()
    if hypotheses is not None:
        translations = read_translations(hypotheses, source)
    return _TestSets(
        {_name_of_set(source): read_documents(source, reference[0])},
        paths=[source, *reference],
        translations=translations,
        documents=True,
    )


def _scored_as(tests: _TestSets, recipe: Recipe) -> _TestSets:
    """Test sets with the metrics of a recipe."""
    return replace(
        tests, metrics=recipe.training.get("metrics"), bleu_tokenize=recipe.bleu_tokenize
    )


def _name_of_set(source: str) -> str:
    return Path(uncompressed_name(source)).stem


def _read_recipe(path: Path, names: list[str] | None) -> _TestSets:
    if not path.is_file():
        raise ValueError(f"There is no recipe {path}: pass --recipe, or --source and --reference.")
    recipe = load_recipe(path)
    data = recipe.data_arguments()
    if names is None and data.dataset is None and not data.validation_size:
        # Training pairs, which may be many, are not read
        names = [name for name in data.split_names if name != "train"]
    splits, _ = load_translation_dataset(data, names)
    names = names or [name for name in splits if name != "train"]
    if not names:
        raise ValueError(f"{path} has no split to score but train: pass --source and --reference.")
    tests = _TestSets(
        {name: (list(splits[name]["source"]), list(splits[name]["target"])) for name in names},
        has_several_references=bool(data.further_references),
        documents=data.documents,
    )
    return _scored_as(tests, recipe)


def _scoring(
    tests: _TestSets, metrics: list[str] | None, tokenize: str | None, **options: bool
) -> dict[str, Any]:
    """Checks how test sets are to be scored, and returns the arguments of `_score`."""
    check_sacrebleu_tokenizer(tokenize, "--bleu_tokenize")
    chosen_metrics: Sequence[str] = metrics or tests.metrics or DEFAULT_METRICS
    for name in chosen_metrics:
        metric = load_metric(name)
        metric.check_requirements()
        if metric.needs == "alignments" and not tests.translations:
            raise ValueError(f"{name} scores alignments: csan-hf align --gold FILE prints it.")
    if tests.has_several_references:
        check_several_references(chosen_metrics)
    return {
        "metrics": chosen_metrics,
        "tokenize": tokenize or tests.bleu_tokenize,
        "documents": tests.documents,
        **options,
    }


def _score(
    hypotheses: Collection[str],
    test_set: TestSet,
    *,
    documents: bool,
    by_length: bool,
    **scoring: Any,
) -> dict[str, Any]:
    sources, references = test_set
    scores = score_translations(hypotheses, references, sources=sources, **scoring)
    scores["sentences"] = len(sources)
    if documents:
        scores |= score_lines(hypotheses, references, sources=sources, **scoring)
    if by_length:
        scores["by_length"] = score_by_length(
            sources, hypotheses, references, samples=BOOTSTRAP_SAMPLES, **scoring
        )
    return scores


def _score_file(
    hypotheses: str, tests: _TestSets, output_dir: Path | None, scoring: dict[str, Any]
) -> None:
    """Scores translations that exist already."""
    [(name, test_set)] = tests.sets.items()
    if output_dir is not None:
        check_writable(output_dir / "scores.json", tests.paths)
    scores = {name: _score(tests.translations, test_set, **scoring)}
    if output_dir is not None:
        write_json(output_dir / "scores.json", {"hypotheses": hypotheses, "scores": scores})
    _print_table(scores)


class _Evaluated(NamedTuple):
    """A test set by its name, the lines to be written, and its scores."""

    name: str
    lines: list[str]
    scores: dict[str, Any]


def _translated(
    names: list[str],
    tests: _TestSets,
    loading: ModelOptions,
    options: dict[str, Any],
    scoring: dict[str, Any],
) -> Iterator[_Evaluated]:
    """Translates the test sets with a model and scores them."""
    with loaded_translator(names, **loading.for_loading()) as translator:
        _, generation = translator.engine.defaults(options["source_lang"], options["target_lang"])
        for name, test_set in tests.sets.items():
            sources, references = test_set
            start = time.time()
            texts = list(best_texts(translator.stream(sources, **options)))
            seconds = round(time.time() - start, 2)
            scores = _score(texts, test_set, **scoring)
            scores["num_beams"] = options["num_beams"] or generation.num_beams
            scores["seconds"] = seconds
            lines = texts
            if tests.documents:
                lines = list(document_lines(texts, references))
            yield _Evaluated(name, lines, scores)


def _forced(
    names: list[str], tests: _TestSets, loading: ModelOptions, options: dict[str, Any]
) -> Iterator[_Evaluated]:
    """Scores the references of the test sets with a model."""
    model, tokenizers = load_translation_model(names, **loading.for_loading())
    processes = launched_processes(loading.device)
    for name, (sources, references) in tests.sets.items():
        first_references = [text.partition(VARIANTS)[0] for text in references]
        line_scores = score_forced(
            model, tokenizers, list(sources), first_references, processes=processes, **options
        )
        lines = [json.dumps(scores) for scores in line_scores]
        yield _Evaluated(name, lines, _summed(line_scores))
    if processes is not None:
        processes.destroy_process_group()


def _write(
    evaluated: Iterable[_Evaluated],
    names: list[str],
    tests: _TestSets,
    output_dir: Path | None,
    *,
    forced: bool,
) -> None:
    """Checks that the files can be written, then evaluates, and writes and prints the results in
    the main process.
    """
    if output_dir is None:
        check_folder_or_name(names[0], "model")
        if not Path(names[0]).is_dir():
            raise ValueError(f"{names[0]} is no folder here, to write to: pass --output_dir.")
    output = output_dir or path_inside(names[0], "evaluation")
    kind = "forced" if forced else "scores"
    ending = "forced.jsonl" if forced else "hypotheses.txt"
    files = {name: path_inside(output, f"{name}.{ending}") for name in tests.sets}
    table = path_inside(output, f"{kind}.json")
    for path in (*files.values(), table):
        check_writable(path, tests.paths)
    results = {}
    for name, lines, scores in evaluated:
        results[name] = scores
        if is_main_process():
            write_lines(files[name], lines)
    if not is_main_process():
        return
    write_json(table, {"model": names if len(names) > 1 else names[0], kind: results})
    if forced:
        _print_forced(results)
    else:
        _print_table(results)
    print(f"{'Scores by line' if forced else 'Hypotheses'} and {table.name} are in {output}.")


def _summed(line_scores: list[dict[str, Any]]) -> dict[str, Any]:
    """The scores of all lines of `score_forced` together."""
    return {
        "sentences": len(line_scores),
        "tokens": sum(line["tokens"] for line in line_scores),
        "log_probability": sum(line["log_probability"] for line in line_scores),
        "perplexity": perplexity(line_scores),
    }


def _print_forced(results: dict[str, dict[str, Any]]) -> None:
    for name, scores in results.items():
        print(
            f"{name}: {scores['sentences']:,} sentences, {scores['tokens']:,} tokens, "
            f"log-probability {scores['log_probability']:,.1f}, "
            f"perplexity {scores['perplexity']:,.3f}"
        )


def _print_table(scores: dict[str, dict[str, Any]]) -> None:
    print(*score_table(scores), sep="\n")
    for name, entry in scores.items():
        if "by_length" in entry:
            _print_lengths(name, entry["by_length"], list(metrics_in(entry)))


def _print_lengths(name: str, groups: list[dict], metrics: list[type[CorpusMetric]]) -> None:
    """Prints the scores of groups of similar length as a Markdown table."""
    print(f"\n{name}, by words in the source; in brackets: 95% intervals by bootstrap\n")
    labels = " | ".join(metric.label for metric in metrics)
    print(f"| words in the source | sentences | reference | hypothesis | {labels} |")
    print("| --- |" + " ---: |" * (3 + len(metrics)))
    for group in groups:
        cells = [
            f"{group['shortest']} to {group['longest']}",
            f"{group['sentences']:,}",
            f"{group['reference_words']:.1f}",
            f"{group['hypothesis_words']:.1f}",
        ]
        for metric in metrics:
            low, high = map(metric.format, group[f"{metric.name}_interval"])
            cells.append(f"{metric.format(group[metric.name])} [{low}, {high}]")
        print(f"| {' | '.join(cells)} |")
