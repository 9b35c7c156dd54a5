# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""`csan-hf compare` for a suite of systems that it trains, `csan-hf report` for translations that
are there.
"""

import itertools
import sys
from collections.abc import Collection
from datetime import date
from pathlib import Path
from typing import Any, Literal

from csan_hf.commands import join_references
from csan_hf.data.documents import read_documents
from csan_hf.evaluation.metrics import DEFAULT_METRICS, check_several_references
from csan_hf.evaluation.pieces import Pair, group_pieces, pairs_of_lines
from csan_hf.lab.report import (
    check_card,
    check_settings,
    compare_systems,
    load_systems,
    show_in_card,
    write_report,
)
from csan_hf.lab.report.systems import check_names, name_and_paths
from csan_hf.lab.suites import load_suite, publish_suite, run_suite
from csan_hf.lab.suites.publish import check_target
from csan_hf_runtime.command_line.common import NotEmptyStr, PositiveInt
from csan_hf_runtime.text_files import check_writable, counted, open_parallel

PUBLISHED = Path("model_cards", "suites")
"""Where a checkout of csan_hf holds what was published of its suites."""


def compare(
    suite: str,
    /,
    *,
    output: NotEmptyStr,
    size: str | None = None,
    data_dir: str | None = None,
    jobs: PositiveInt = 1,
    threads: PositiveInt = 1,
    only: Literal["all", "cost", "report"] = "all",
    publish: NotEmptyStr | None = None,
    quiet: bool = False,
) -> int:
    """Trains and compares the systems of a suite.

    A suite is a YAML file of systems × data sets × seeds that share a recipe; `csan-hf recipes`
    lists those that come with csan_hf. Each combination is one training run.

        csan-hf compare naacl_table1 --data_dir PATH/TO/multi30k --output runs/table1 --only cost
        csan-hf compare naacl_table1 --data_dir PATH/TO/multi30k --output runs/table1

    The number of runs and their expected time are printed first. The same command continues after
    any interruption: finished runs are kept, failed ones are tried again. OUTPUT receives the
    runs and the report: report.html, report.md, report.json, scores.csv and pictures.

    --publish copies the report and the runs' records, without models, to another folder. To
    continue the suite on another machine, copy that folder there and pass it as --output.

    Args:
        suite: YAML file, or the name of a suite
        output: folder for the runs and the report
        size: one of the suite's sizes (default: the first)
        data_dir: folder of the data, instead of the recipe's
        jobs: number of runs at the same time
        threads: CPU threads of each run
        only: cost: only check all recipes and print the number of runs and their time; report: only
            write the report of the finished runs, or, if there are none, of the published ones
            (model_cards/suites/SUITE)
        publish: folder for the report and the finished runs' records, to share or to commit
    """
    loaded = load_suite(suite, size=size, data_dir=data_dir)
    folder = Path(output)
    if publish:
        check_target(loaded, folder, Path(publish))  # before anything is trained
    failed = run_suite(
        loaded,
        folder,
        jobs=jobs,
        threads=threads,
        only=only,
        published=PUBLISHED / Path(suite).stem,
        progress=not quiet,
    )
    for name, reason in failed.items():
        print(f"Failed: {name}: {reason}", file=sys.stderr)
    if only != "cost":
        print(f"The report is {folder / 'report.html'}.")
    if publish and only != "cost":
        files = publish_suite(loaded, folder, Path(publish))
        print(f"Published {counted(len(files), 'file')} in {publish}.")
    return 1 if failed else 0


def report(
    systems: list[str],
    /,
    *,
    source: Path,
    reference: list[str],
    output: Path = Path("report.html"),
    plots: Path | None = None,
    card: bool = False,
    baseline: str | None = None,
    title: str | None = None,
    metrics: list[str] | None = None,
    bleu_tokenize: str | None = None,
    test: Literal["bootstrap", "randomisation"] = "bootstrap",
    samples: PositiveInt = 1000,
    aligned: int = 1000,
    documents: bool = False,
    pieces: tuple[Path, Path] | None = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
    num_beams: PositiveInt | None = None,
    device: str | None = None,
    trust_remote_code: bool = False,
    quiet: bool = False,
) -> None:
    """Writes a page that compares translations: scores with significance, plots, every sentence
    with its alignment.

    A system is a checkpoint (a folder or Hub name, which translates --source) or a file with one
    translation per line; NAME=PATH names it, and PATH,PATH,… are the same system trained with
    several seeds. Each is compared with the baseline: differences are its score minus that of the
    baseline. The page is one file that loads nothing.

        csan-hf report runs/numbers base.txt --source test.en --reference test.de

    Args:
        systems: [NAME=]PATH[,PATH…]
        source: source sentences, one per line (may be compressed)
        reference: their references, one per line; several files = as many for each line
        output: the page
        plots: folder for the plots as PNG and SVG
        card: show the plots in the model card of the first system, a run's folder
        baseline: name of the system that the others are compared with (default: the last)
        title: heading (default: the systems, the name of --source and the date)
        metrics: bleu, chrf, ter, ...; an unknown name lists all; the first is plotted (default:
            bleu chrf)
        bleu_tokenize: sacreBLEU tokenizer: 13a, zh, char... (default: by the references' script)
        test: of significance; two-sided, p-values are adjusted for the number of systems (Holm)
        samples: resamples of the bootstrap
        aligned: sentences that get an alignment
        documents: the files hold documents, a blank line between them, which are what is scored;
            three are shown line by line
        pieces: source and reference of the pieces (paragraphs, sentences) that the lines are joined
            of: three texts are shown piece by piece
        num_beams: beams of checkpoints (default: the model's)
    """
    named = [name_and_paths(system) for system in systems]
    run = named[0][1][0]
    if card:
        check_card(run)
    if documents and (pieces or len(reference) > 1):
        raise ValueError("--documents are shown by their lines, and have one --reference.")
    # Before checkpoints translate, which may take hours
    check_names([name for name, _ in named], baseline)
    paths = itertools.chain.from_iterable(paths for _, paths in named)
    check_writable(output, (source, *reference, *paths, *(pieces or ())))
    if output.is_file() and output.suffix not in (".html", ".htm"):
        raise ValueError(f"{output} is there already and is no page (.html): choose another name.")
    if plots is not None:
        check_writable(plots / "scores_by_length.png")
    settings: Any = {
        "metrics": metrics or list(DEFAULT_METRICS),
        "tokenize": bleu_tokenize,
        "test": test,
    }
    if len(reference) > 1:
        check_several_references(settings["metrics"])
    check_settings([len(paths) for _, paths in named], **settings)
    sources: Collection[str]
    references: Collection[str]
    if documents:
        sources, references = read_documents(source, reference[0])
        grouped = list(map(pairs_of_lines, sources, references))
    else:
        sources, *reference_files = open_parallel(source, *reference)
        references = join_references(reference_files)
        grouped = _pieces_of(sources, pieces)
    loaded = load_systems(
        systems,
        sources,
        documents_of=source if documents else None,
        device=device,
        trust_remote_code=trust_remote_code,
        progress=not quiet,
        src_lang=source_lang,
        tgt_lang=target_lang,
        num_beams=num_beams,
    )
    names = ", ".join(system.name for system in loaded)
    page = compare_systems(
        loaded,
        sources,
        references,
        **settings,
        samples=samples,
        aligned=aligned,
        pieces=grouped,
        title=title or f"{names}: {source.name}, {date.today()}",
        progress=not quiet,
        baseline=baseline,
    )
    write_report(page, output, plots=plots)
    if card:
        show_in_card(page, run)
    print(f"The report is {output}.")


def _pieces_of(sources: Collection[str], paths: tuple[Path, Path] | None) -> list[list[Pair]]:
    """The pieces of each source, of two files; none without files."""
    if paths is None:
        return []
    return list(group_pieces(sources, zip(*open_parallel(*paths), strict=True)))
