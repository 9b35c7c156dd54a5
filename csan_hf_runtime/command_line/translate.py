# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""`csan-hf translate`: ONNX graphs without torch, all else by csan_hf."""

from __future__ import annotations

import importlib.util
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from csan_hf_runtime import exported_folder, is_launched, is_main_process, usable_cores
from csan_hf_runtime.markup import Page, is_page
from csan_hf_runtime.options import SearchOptions, TextOptions
from csan_hf_runtime.subtitles import Subtitles, are_subtitles
from csan_hf_runtime.terms import Terms
from csan_hf_runtime.text_files import (
    STANDARD_STREAM,
    check_folder_or_name,
    check_readable,
    open_parallel,
    partial_name,
    read_lines,
    read_lines_as_they_come,
)

from . import import_csan_hf
from .common import ModelOptions, NonNegativeInt
from .output import Done, OutputOptions, lines_done, write_translations

if TYPE_CHECKING:
    from csan_hf_runtime.engine import Engine
    from csan_hf_runtime.translator import TextTranslator


def translate(
    *,
    model: list[str],
    input: str = STANDARD_STREAM,
    output: OutputOptions,
    search: SearchOptions,
    text: TextOptions,
    prefixes: str | None = None,
    terms: str | None = None,
    processes: NonNegativeInt | None = None,
    loading: ModelOptions,
) -> None:
    """Translates standard input or a file, line for line; an empty line stays an empty line.

    Subtitles, files whose names end in .srt or .vtt, are written with times, numbers, settings and
    notes as they are, and each cue in at most as many lines as it had. Pages, .html or .htm, are
    one text each, and need --markup html.

    Translations are written as they are made, a few thousand at a time; those of standard input
    also when no line has come for a moment, with --documents behind a blank one, so that a program
    can wait for its answer. If the command is stopped before the end, finished translations are
    kept: with --output FILE, in FILE.partial, but for subtitles and pages, which are written whole
    or not at all.

    Several models are an ensemble: their probabilities are averaged. With --n_best every line of
    the output is the number of a line of the input, from 1, the natural logarithm of the
    translation's probability, and the translation, separated by tabs.

    Under `accelerate launch` or torchrun the processes share the work; --input and --output are
    then required.

    Args:
        model: folder of a checkpoint or of ONNX graphs (which need no torch), or Hub name;
            several = an ensemble
        input: text file, one sentence per line, or subtitles, .srt or .vtt, or a page, .html (may
            be compressed); - = standard input
        prefixes: text file with the beginning of each line's translation, which may end within a
            word; an empty line for none
        terms: file with a source term, a tab and its translation on each line. Where the term
            stands in a sentence, as whole words in the same case, so does the translation in the
            output, perhaps with an ending; if it is missing, the search is repeated with at least
            8 beams
        processes: parallel processes on the CPU, for a large file; 0 = one per core
    """
    if search.sample and (processes is not None or is_launched()):
        raise ValueError("Samples are drawn by one process: leave out --processes, or --sample.")
    if is_launched() and STANDARD_STREAM in (input, output.output):
        raise ValueError(
            "Several processes cannot share standard input and output: pass --input and --output."
        )
    if [input, prefixes, terms].count(STANDARD_STREAM) > 1:
        raise ValueError(
            "Only one of --input, --prefixes and --terms can be standard input: name files."
        )
    if output.resume and input == STANDARD_STREAM:
        raise ValueError("--resume needs --input FILE and --output FILE: name both.")
    if output.resume and search.sample:
        raise ValueError("--resume would draw other samples: leave it out, or --sample.")
    if output.resume and text.documents and (output.json_lines or search.n_best is not None):
        raise ValueError(
            "--resume finds the end of a document by its blank line, which neither --json_lines "
            "nor --n_best writes: leave it out."
        )
    check_readable(input)
    glossary = None if terms is None else Terms.read(terms)
    output.check_files((input, prefixes, terms))
    whole_file: Subtitles | Page | None = None
    if are_subtitles(input) or is_page(input):
        _check_options_of_whole_file(input, output, search, prefixes)
    if are_subtitles(input):
        whole_file = Subtitles.read(input, keeps_tags=text.markup is not None)
    elif is_page(input):
        if text.markup != "html":
            raise ValueError(
                f"{input} is a page: add --markup html, or rename a file with a sentence on each "
                "line."
            )
        whole_file = Page.read(input)
    with_scores = search.n_best is not None
    done = Done()
    if output.resume:
        is_numbered = with_scores and not output.json_lines
        find = partial(
            lines_done,
            output.files,
            is_numbered=is_numbered,
            is_json=output.json_lines,
            documents=text.documents,
        )
        done = _on_main_process(find, loading)
        if done.sentences and not loading.quiet:
            print(f"Going on behind line {done.sentences:,} of {input}.", file=sys.stderr)
    sentences: Iterable[str | None]
    if whole_file is None:
        sentences, beginnings = _open_input(input, prefixes, sample=search.sample)
    else:
        sentences, beginnings = whole_file.texts, None
    if done.sentences:
        sentences = iter(sentences)
        _skip(sentences, done.sentences, input, output)
        if beginnings is not None:
            beginnings = itertools.islice(beginnings, done.sentences, None)
    with _translator(model, processes, loading) as translator:
        if are_subtitles(input) and translator.engine.line_token is not None:
            text = text.replaced(documents=text.lines != "alone")
        windows = translator.stream(
            sentences,
            prefixes=beginnings,
            terms=glossary,
            lines_before=done.sentences,
            progress=not loading.quiet and not (input == STANDARD_STREAM and sys.stdin.isatty()),
            return_scores=with_scores or output.json_lines,
            return_words=output.json_lines,
            return_alignments=output.alignments is not None,
            **asdict(text),
            **asdict(search),
        )
        if not is_main_process():
            output = output.replaced(output=os.devnull, alignments=None)
        with closing(windows):
            write_translations(
                windows, output, with_scores=with_scores, done=done, whole_file=whole_file
            )


def _check_options_of_whole_file(
    input: str, output: OutputOptions, search: SearchOptions, prefixes: str | None
) -> None:
    """Refuses options for files with a line for each sentence."""
    options = {
        "--n_best": search.n_best,
        "--json_lines": output.json_lines,
        "--alignments": output.alignments,
        "--resume": output.resume,
        "--prefixes": prefixes,
    }
    names = [name for name, value in options.items() if value]
    if names:
        raise ValueError(
            f"{input} is translated as one file, with no line for each text: leave out "
            f"{', '.join(names)}."
        )


def _on_main_process(find: Callable[[], Done], loading: ModelOptions) -> Done:
    """What a stopped command has left; of several processes the main one looks."""
    if not is_launched():
        return find()
    launcher = import_csan_hf("evaluation.launched", "a launcher of processes")
    launcher.launched_processes(loading.device)
    return launcher.on_main_process(find)


def _skip(sentences: Iterator[str | None], count: int, input: str, output: OutputOptions) -> None:
    """Takes the sentences that are translated already."""
    if sum(1 for _ in itertools.islice(sentences, count)) < count:
        raise ValueError(
            f"{partial_name(output.output)} has translations of more lines than {input}: choose "
            "that input, or leave out --resume."
        )


def _open_input(
    input: str, prefixes: str | None, *, sample: bool
) -> tuple[Iterable[str | None], Iterable[str] | None]:
    """The sentences, and how their translations begin, if that is said."""
    if prefixes is not None and input != STANDARD_STREAM:
        lines, beginnings = open_parallel(input, prefixes)
        return lines, beginnings
    prefix_lines = None if prefixes is None else read_lines(prefixes)
    if input == STANDARD_STREAM and not sample:  # samples depend on what is drawn together
        return read_lines_as_they_come(), prefix_lines
    return read_lines(input), prefix_lines


@contextmanager
def _translator(
    model: list[str], processes: int | None, options: ModelOptions
) -> Iterator[TextTranslator]:
    """Loads what translates; its processes end after the block."""
    graphs = exported_folder(model[0])
    load_in_pool: Callable[..., Engine]
    with ExitStack() as stack:
        if graphs is None or len(model) > 1 or is_launched():
            for name in model:
                check_folder_or_name(name, "model")
            needs_torch = f"{model[0]}, which has no ONNX graphs,"
            if graphs is not None:
                needs_torch = "an ensemble" if len(model) > 1 else "a launcher of processes"
            loading = import_csan_hf("evaluation.loading", needs_torch)
            arguments = options.for_loading()
            translator = stack.enter_context(loading.loaded_translator(model, **arguments))
            arguments |= {"device": "cpu", "progress": False}
            load_in_pool = partial(loading.load_in_pool, model, **arguments)
        else:
            _check_graph_options(graphs, options)
            from csan_hf_runtime.graph_engine import GraphEngine
            from csan_hf_runtime.translator import TextTranslator

            # OpenMP lets it have a number for each level of nested threads
            threads, _, _ = os.environ.get("OMP_NUM_THREADS", "").partition(",")
            translator = TextTranslator.from_directory(
                graphs, threads=int(threads) if threads.isdecimal() else usable_cores()
            )
            load_in_pool = partial(GraphEngine.from_directory, graphs)
        if processes is not None and not is_launched():
            from csan_hf_runtime.pool import EnginePool

            translator.workers = stack.enter_context(EnginePool(processes, load_in_pool))
        yield translator


def _check_graph_options(folder: Path, options: ModelOptions) -> None:
    if options.device not in (None, "cpu") or options.dtype != "float32":
        raise ValueError(
            f"{folder} has ONNX graphs, which run on the CPU as they were exported: leave out "
            "--device and --dtype."
        )
    if importlib.util.find_spec("onnxruntime") is None:
        raise ImportError(
            f"{folder} has ONNX graphs, which need onnxruntime: pip install onnxruntime"
        )
