# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""`csan-hf align`."""

import os
import sys
from contextlib import ExitStack
from pathlib import Path

from csan_hf.evaluation import align_stream
from csan_hf.evaluation.alignment_files import Links, read_alignments
from csan_hf.evaluation.loading import load_translation_model
from csan_hf_runtime.command_line.common import ModelOptions, PositiveInt, beside_bars
from csan_hf_runtime.text_files import (
    STANDARD_STREAM,
    check_writable,
    one_line,
    open_for_writing,
    open_lines,
    open_parallel,
)


def align(
    model: str,
    /,
    *,
    source: str,
    target: str | None = None,
    output: str = STANDARD_STREAM,
    translations: str | None = None,
    threshold: float | None = None,
    symmetric: bool = False,
    layer: int = -1,
    heat_map: Path | None = None,
    sentence: int | None = None,
    gold: Path | None = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
    num_beams: PositiveInt | None = None,
    batch_size: PositiveInt = 32,
    loading: ModelOptions,
) -> None:
    """Aligns the words of sentence pairs: one line per pair, "0-0 1-2" = source word 0 with target
    word 0, 1 with 2.

    Words are separated by white space; for a pronouncer, each letter is a word. Without --target,
    the model's own translations are aligned. The tag of a target language, ">>de<<", with which a
    source may begin, is no word.

    Args:
        source: source sentences, one per line (may be compressed); - = standard input
        target: their translations, one per line (may be compressed); - = standard input
        output: file for the links; - = standard output
        translations: file for the model's translations, if there is no --target
        threshold: link all source words with more than this share of a target word's positive
            values, from 0 to 1 (default: each target word to the source word with the highest
            value)
        symmetric: keep a link only if the target word is the best for the source word too
        layer: decoder layer of a Transformer, from 0, or from the last
        heat_map: file for a picture of one pair's tokens
        sentence: line of the pair to draw, from 1 (default: 1)
        gold: gold alignment, in Pharaoh's format (0-0 sure, 1p2 possible) or that of NAACL 2003:
            prints the alignment error rate on standard error
        num_beams: beams, if there is no --target (default: the model's)
        batch_size: pairs aligned at a time
    """
    if target is not None and (translations is not None or num_beams is not None):
        raise ValueError(
            "--translations and --num_beams are for the model's own translations: leave out "
            "--target"
        )
    if gold is not None and target is None:
        raise ValueError("--gold belongs to given translations: give --target too")
    outputs = [str(path) for path in (output, translations, heat_map) if path is not None]
    if len({os.path.realpath(path) for path in outputs}) < len(outputs):
        raise ValueError(
            f"--output, --translations and --heat_map are {', '.join(outputs)}: choose two files."
        )
    for path in outputs:
        check_writable(path, (source, target, gold))
    targets = None
    if target is None:
        sources = open_lines(source)
    else:
        sources, targets = open_parallel(source, target)
    drawn = 1 if sentence is None else sentence
    if heat_map is not None:
        if not 1 <= drawn <= len(sources):
            raise ValueError(
                f"--sentence must be from 1 to {len(sources)}, the number of pairs, got {drawn}."
            )
        from csan_hf.hub.heat_map import draw_heat_map  # which needs an extra
    gold_links = []
    if gold is not None and targets is not None:  # read before hours of alignment
        gold_links = read_alignments(gold, sources, targets)
    network, tokenizers = load_translation_model(model, **loading.for_loading())
    generate_arguments = {} if num_beams is None else {"num_beams": num_beams}
    alignments = align_stream(
        network,
        tokenizers,
        sources,
        targets,
        layer=layer,
        batch_size=batch_size,
        progress=not loading.quiet,
        src_lang=source_lang,
        tgt_lang=target_lang,
        **generate_arguments,
    )
    links = []
    with ExitStack() as files:
        links_file = files.enter_context(open_for_writing(output))
        translations_file = None
        if translations is not None:
            translations_file = files.enter_context(open_for_writing(translations))
        for number, alignment in enumerate(alignments, 1):
            if heat_map is not None and number == drawn:
                draw_heat_map(alignment, heat_map)
            if translations_file is not None:
                translations_file.write(f"{one_line(alignment.target.text)}\n")
            line = alignment.pharaoh(threshold=threshold, symmetric=symmetric)
            with beside_bars():
                links_file.write(f"{line}\n")
            if gold is not None:
                links.append(line)
    if gold is not None:
        _print_error_rate(links, gold_links)


def _print_error_rate(links: list[str], gold_links: list[Links]) -> None:
    from csan_hf.evaluation.metrics import load_metric  # which needs an extra

    scores = load_metric("aer").results(links, [entry.pharaoh() for entry in gold_links])
    print(
        f"alignment error rate {scores['aer']:.2f}, "
        f"precision {scores['alignment_precision']:.2f}, "
        f"recall {scores['alignment_recall']:.2f}",
        file=sys.stderr,
    )
