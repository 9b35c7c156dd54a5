# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Writes a page that compares translations: scores with significance, plots, and every sentence with its alignment.

A system is a checkpoint (a folder or Hub name, which translates --source) or a file with one translation per line;
NAME=PATH names it, and PATH,PATH,… are the same system trained with several seeds. The first system is compared with
each of the others. The page is one file that loads nothing.

    csan-hf report runs/numbers baseline.txt --source test.en --reference test.de --output report.html
"""

import argparse
from pathlib import Path
from typing import Any

from csan_hf.command_line import script
from csan_hf.evaluation.metrics import DEFAULT_METRICS, metric_names
from csan_hf.files import check_writable, open_lines
from csan_hf.report import (
    Report,
    check_card,
    check_settings,
    compare_systems,
    load_systems,
    show_in_card,
    write_report,
)
from csan_hf.report.systems import name_and_paths


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="csan-hf report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("systems", nargs="+", metavar="SYSTEM", help="[NAME=]PATH[,PATH…]; the others are baselines")
    parser.add_argument(
        "--source", type=Path, required=True, metavar="FILE", help="source sentences, one per line (may be .gz)"
    )
    parser.add_argument("--reference", type=Path, required=True, metavar="FILE", help="their references, one per line")
    parser.add_argument("--output", type=Path, default=Path("report.html"), metavar="HTML", help="(%(default)s)")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="folder for the plots as PNG and SVG")
    parser.add_argument(
        "--card", action="store_true", help="show the plots in the model card of the first system, a run's folder"
    )
    parser.add_argument("--title", help="heading (default: the names of the systems)")
    parser.add_argument(
        "--metrics",
        nargs="+",
        choices=metric_names(),
        default=list(DEFAULT_METRICS),
        metavar="METRIC",
        help=f"some of {', '.join(metric_names())}; the first is plotted (default: {' '.join(DEFAULT_METRICS)})",
    )
    parser.add_argument("--bleu_tokenize", help="sacreBLEU tokenizer: 13a, zh, char... (default: 13a)")
    parser.add_argument("--test", choices=["bootstrap", "randomisation"], default="bootstrap", help="(%(default)s)")
    parser.add_argument("--samples", type=int, default=1000, help="resamples of the bootstrap (%(default)s)")
    parser.add_argument("--aligned", type=int, default=1000, help="sentences that get an alignment (%(default)s)")
    parser.add_argument("--num_beams", type=int, help="beams of checkpoints (default: the model's)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1... (default: the accelerator if there is one)")
    parser.add_argument("--trust_remote_code", action="store_true", help="run model code from checkpoints")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    return parser.parse_args(arguments)


def make_report(options: argparse.Namespace) -> Report:
    """Compares the systems of the command line."""
    settings: Any = {
        "metrics": options.metrics,
        "tokenize": options.bleu_tokenize,
        "test": options.test,
        "samples": options.samples,
        "aligned": options.aligned,
    }
    check_settings([len(name_and_paths(system)[1]) for system in options.systems], **settings)
    sources, references = open_lines(options.source), open_lines(options.reference)
    if len(sources) != len(references):
        raise ValueError(
            f"{options.source} has {len(sources)} lines and {options.reference} has {len(references)}: they must have "
            "the same number."
        )
    systems = load_systems(
        options.systems,
        sources,
        device=options.device,
        trust_remote_code=options.trust_remote_code,
        progress=not options.quiet,
        num_beams=options.num_beams,
    )
    title = options.title or " and ".join(system.name for system in systems)
    return compare_systems(systems, sources, references, title=title, progress=not options.quiet, **settings)


@script()
def main(arguments: list[str]) -> None:
    """Runs `csan-hf report`."""
    options = parse_arguments(arguments)
    run = name_and_paths(options.systems[0])[1][0]
    if options.card:
        check_card(run)
    # Before checkpoints translate, which may take hours
    check_writable(options.output)
    if options.plots is not None:
        check_writable(options.plots / "scores_by_length.png")
    report = make_report(options)
    write_report(report, options.output, plots=options.plots)
    if options.card:
        show_in_card(report, run)
    print(f"The report is {options.output}.")
