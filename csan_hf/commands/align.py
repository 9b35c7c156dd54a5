# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Aligns the words of sentence pairs: one line per pair, "0-0 1-2" = source word 0 with target word 0, 1 with 2.

Words are what white space separates. Without --target the model's own translations are aligned."""

import argparse
import os
import sys
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from pathlib import Path

from csan_hf.analysis import Alignment, align_stream, draw_heat_map
from csan_hf.command_line import script
from csan_hf.evaluation.alignment_files import Links, check_links, read_alignments
from csan_hf.evaluation.loading import DTYPES, load_translation_model
from csan_hf.evaluation.metrics import load_metric
from csan_hf.files import STANDARD_STREAM, one_line, open_for_writing, open_lines


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="csan-hf align", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", metavar="MODEL", help="checkpoint folder or Hub name")
    parser.add_argument(
        "--source",
        required=True,
        metavar="FILE",
        help="source sentences, one per line (may be .gz); - = standard input",
    )
    parser.add_argument(
        "--target", metavar="FILE", help="their translations, one per line (may be .gz); - = standard input"
    )
    parser.add_argument(
        "--output",
        default=STANDARD_STREAM,
        metavar="FILE",
        help="file for the links (default: -, standard output)",
    )
    parser.add_argument(
        "--translations",
        metavar="FILE",
        help="file for the model's translations, where there is no --target",
    )
    links = parser.add_argument_group("links")
    links.add_argument(
        "--threshold",
        type=float,
        metavar="SHARE",
        help="link all source words with more than this share of a target word's positive values, from 0 to 1 "
        "(default: each target word to the source word with the highest value)",
    )
    links.add_argument(
        "--symmetric",
        action="store_true",
        help="keep a link only if the target word is the best for the source word too",
    )
    links.add_argument(
        "--layer", type=int, default=-1, help="decoder layer of a Transformer, from 0, or from the last (%(default)s)"
    )
    picture = parser.add_argument_group("picture")
    picture.add_argument("--heat_map", type=Path, metavar="PNG", help="file for a picture of one pair's tokens")
    picture.add_argument("--sentence", type=int, metavar="N", help="line of the pair to draw, from 1 (default: 1)")
    parser.add_argument(
        "--gold",
        type=Path,
        metavar="FILE",
        help="gold alignment, in Pharaoh's format (0-0 sure, 1p2 possible) or that of NAACL 2003: prints the "
        "alignment error rate on standard error",
    )
    parser.add_argument("--num_beams", type=int, help="beams, where there is no --target (default: the model's)")
    parser.add_argument("--batch_size", type=int, default=32, help="pairs aligned at a time (%(default)s)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1... (default: the accelerator if there is one)")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="float32", help="(default: %(default)s)")
    parser.add_argument("--trust_remote_code", action="store_true", help="run model code from the checkpoint")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    options = parser.parse_args(arguments)
    if options.sentence is not None and options.heat_map is None:
        parser.error("--sentence chooses what --heat_map draws: give --heat_map too")
    options.sentence = 1 if options.sentence is None else options.sentence
    if options.threshold is not None and not 0 <= options.threshold < 1:
        parser.error(f"--threshold must be at least 0 and less than 1, got {options.threshold:g}")
    if options.target is not None and (options.translations is not None or options.num_beams is not None):
        parser.error("--translations and --num_beams are for the model's own translations: leave out --target")
    if options.translations is not None and os.path.realpath(options.translations) == os.path.realpath(options.output):
        parser.error(f"--translations and --output are both {options.output}: give two files")
    if options.gold is not None and options.target is None:
        parser.error("--gold belongs to given translations: give --target too")
    return options


def read_pairs(options: argparse.Namespace) -> tuple[Collection[str], Collection[str] | None]:
    """Reads the sentence pairs, of which the targets may be missing."""
    sources = open_lines(options.source)
    targets = None if options.target is None else open_lines(options.target)
    if targets is not None and len(sources) != len(targets):
        raise ValueError(
            f"{options.source} has {len(sources)} lines and {options.target} has {len(targets)}: "
            "they must have the same number."
        )
    if options.heat_map is not None and not 1 <= options.sentence <= len(sources):
        raise ValueError(f"--sentence must be from 1 to {len(sources)}, the number of pairs, got {options.sentence}.")
    return sources, targets


def read_gold(path: Path, sources: Collection[str], targets: Collection[str]) -> list[Links]:
    """Reads the gold alignment of sentence pairs."""
    gold = read_alignments(path, len(sources))
    try:
        check_links(gold, sources, targets)
    except ValueError as error:
        raise ValueError(f"{path}, {error}") from error
    return gold


def align_files(
    options: argparse.Namespace, sources: Collection[str], targets: Collection[str] | None
) -> Iterator[Alignment]:
    """Aligns the sentence pairs of the command line."""
    model, tokenizers = load_translation_model(
        options.model,
        device=options.device,
        dtype=options.dtype,
        trust_remote_code=options.trust_remote_code,
        progress=not options.quiet,
    )
    generation = {} if options.num_beams is None else {"num_beams": options.num_beams}
    return align_stream(
        model,
        tokenizers,
        sources,
        targets,
        layer=options.layer,
        batch_size=options.batch_size,
        progress=not options.quiet,
        **generation,
    )


@script()
def main(arguments: list[str]) -> None:
    """Runs `csan-hf align`."""
    options = parse_arguments(arguments)
    sources, targets = read_pairs(options)
    # Before anything is aligned, which may take hours
    gold = [] if options.gold is None or targets is None else read_gold(options.gold, sources, targets)
    alignments = align_files(options, sources, targets)
    links = []
    with ExitStack() as files:
        output = files.enter_context(open_for_writing(options.output))
        translations = options.translations and files.enter_context(open_for_writing(options.translations))
        for number, alignment in enumerate(alignments, 1):
            line = alignment.pharaoh(threshold=options.threshold, symmetric=options.symmetric)
            output.write(f"{line}\n")
            if translations:
                translations.write(f"{one_line(alignment.target.text)}\n")
            if options.heat_map is not None and number == options.sentence:
                draw_heat_map(alignment, options.heat_map)
            if options.gold is not None:
                links.append(line)
    if options.gold is not None:
        found = load_metric("aer").results(links, [sentence.pharaoh() for sentence in gold])
        print(
            f"alignment error rate {found['aer']:.2f}, precision {found['alignment_precision']:.2f}, "
            f"recall {found['alignment_recall']:.2f}",
            file=sys.stderr,
        )
