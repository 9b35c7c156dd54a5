# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""`csan-hf translate`: ONNX graphs without torch, all else by csan_hf."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from csan_hf_runtime import exported_folder, usable_cores
from csan_hf_runtime.text_files import (
    STANDARD_STREAM,
    check_folder_or_name,
    check_no_partial,
    check_readable,
    check_writable,
    compression_of,
    counted,
    one_line,
    open_for_writing,
    open_parallel,
    partial_name,
    read_lines,
    read_lines_as_they_come,
    whole_lines,
)
from csan_hf_runtime.texts import Markup, SplitSentences, Unknown

from . import import_csan_hf, stopping_on_signals
from .common import Dtype, NonNegativeInt, PositiveInt, beside_bars

if TYPE_CHECKING:
    from csan_hf_runtime.texts import Translation
    from csan_hf_runtime.translator import Translator
    from csan_hf_runtime.translator_pool import TranslatorPool


def translate(
    *,
    model: list[str],
    input: str = STANDARD_STREAM,
    output: str = STANDARD_STREAM,
    source_lang: str | None = None,
    target_lang: str | None = None,
    num_beams: PositiveInt | None = None,
    max_length: PositiveInt | None = None,
    max_new_tokens: PositiveInt | None = None,
    length_penalty: float | None = None,
    truncation: bool = False,
    check_coverage: bool = False,
    split_sentences: SplitSentences = "auto",
    unknown: Unknown = "warn",
    prefixes: str | None = None,
    n_best: PositiveInt | None = None,
    json_lines: bool = False,
    alignments: str | None = None,
    resume: bool = False,
    markup: Markup | None = None,
    terms: str | None = None,
    sample: bool = False,
    temperature: float | None = None,
    top_k: PositiveInt | None = None,
    top_p: float | None = None,
    seed: int = 0,
    max_batch_tokens: PositiveInt = 4096,
    processes: NonNegativeInt | None = None,
    device: str | None = None,
    dtype: Dtype = "float32",
    trust_remote_code: bool = False,
    quiet: bool = False,
) -> None:
    """Translates standard input or a file, line for line; an empty line stays an empty line.

    Translations are written as they are made, a few thousand at a time; those of standard input
    also when no line has come for a moment, so that a program can wait for its answer. If the
    command is stopped before the end, finished translations are kept: with --output FILE, in
    FILE.partial.

    Several models are an ensemble: their probabilities are averaged. With --n_best every line of
    the output is the number of a line of the input, from 1, the natural logarithm of the
    translation's probability, and the translation, separated by tabs.

    Under `accelerate launch` or torchrun the processes share the work; --input and --output are
    then required.

    Args:
        model: folder of a checkpoint or of ONNX graphs (which need no torch), or Hub name;
            several = an ensemble
        input: text file, one sentence per line (may be compressed); - = standard input
        output: file for the translations (.gz, .bz2, .xz: compressed); - = standard output
        check_coverage: warn where a translation seems to leave out a sentence of a line that has
            several
        split_sentences: which lines are split and translated sentence by sentence: auto = lines
            with more tokens or sentences than 99 % of the training sources; always = all; never =
            only lines longer than the model takes
        unknown: what to do with a line that has characters missing from the source vocabulary:
            warn; skip = an empty translation; error
        prefixes: text file with the beginning of each line's translation, which may end within a
            word; an empty line for none
        n_best: write the N best hypotheses of each line, or N samples, with their log-probabilities
        json_lines: write JSON, a line for each input: its translations with their
            log-probabilities, and those of their words and tokens
        alignments: file for the alignment of each line of the output: 0-0 1-2 = source word 0 with
            word 0 of the translation, 1 with 2 (for a pronouncer, letters); --json_lines has
            it, too, and with "-" is the only place
        resume: continue where the same command was stopped, after the lines in FILE.partial of
            --output FILE (and of --alignments); for files only, and not for compressed outputs
        markup: format of inline tags in the input, html or xliff: tags are put back around the
            words aligned to those they enclosed; entities such as &amp; are decoded and encoded
        terms: file with a source term, a tab and its translation on each line. Where the term
            stands in a sentence, as whole words in the same case, so does the translation in the
            output, perhaps with an ending; if it is missing, the search is repeated with at least
            8 beams
        sample: draw translations instead of searching for the best
        temperature: with --sample: below 1 sharpens the probabilities
        top_k: with --sample: draw from the K likeliest tokens
        top_p: with --sample: draw from the likeliest tokens whose probabilities reach this sum
        seed: with --sample: of the random numbers
        processes: parallel processes on the CPU, for a large file; 0 = one per core
    """
    if not sample and (temperature, top_k, top_p) != (None, None, None):
        raise ValueError("--temperature, --top_k and --top_p need --sample.")
    if sample and processes is not None:
        raise ValueError("Samples are drawn by one process: leave out --processes, or --sample.")
    if num_beams is not None and num_beams < (n_best or 1) and not sample:
        raise ValueError(
            f"--n_best {n_best} needs as many beams, got --num_beams {num_beams}; or --sample."
        )
    is_launched = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if is_launched and STANDARD_STREAM in (input, output):
        raise ValueError(
            "Several processes cannot share standard input and output: pass --input and --output."
        )
    if [input, prefixes, terms].count(STANDARD_STREAM) > 1:
        raise ValueError(
            "Only one of --input, --prefixes and --terms can be standard input: name files."
        )
    if terms is not None and (sample or prefixes is not None or len(model) > 1):
        raise ValueError(
            "--terms needs a search of its own: leave out --sample and --prefixes, and pass one "
            "model."
        )
    if alignments == STANDARD_STREAM and not json_lines:
        raise ValueError("--alignments -: name a file, or add --json_lines, which holds them, too.")
    check_readable(input)
    alignments_file = None if alignments == STANDARD_STREAM else alignments
    outputs = [output]
    if alignments_file is not None:
        if os.path.realpath(alignments_file) == os.path.realpath(output):
            raise ValueError(f"--output and --alignments are {output}: choose two files.")
        outputs.append(alignments_file)
    for path in outputs:
        check_writable(path, (input, prefixes, terms))
        if path != STANDARD_STREAM and not resume:
            check_no_partial(partial_name(path))
    done = Progress()
    if resume:
        if STANDARD_STREAM in (input, output) or any(map(compression_of, outputs)):
            raise ValueError(
                "--resume needs --input FILE and --output FILE, and goes on with no compressed "
                "file: name such files."
            )
        go_on = partial(_go_on, outputs, is_numbered=n_best is not None and not json_lines)
        if is_launched:
            loading = import_csan_hf("evaluation.loading", "a launcher of processes")
            loading.launched_processes(device)
            done = loading.on_main_process(go_on)
        else:
            done = go_on()
        if done.sentences and not quiet:
            print(f"Going on behind line {done.sentences:,} of {input}.", file=sys.stderr)
    if json_lines and n_best is None:
        n_best = 1
    sentences, prefix_lines = _open_input(input, prefixes, sample=sample)
    if done.sentences:
        sentences = iter(sentences)
        if sum(1 for _ in itertools.islice(sentences, done.sentences)) < done.sentences:
            raise ValueError(
                f"{partial_name(output)} has translations of more lines than {input}: choose that "
                "input, or leave out --resume."
            )
        if prefix_lines is not None:
            prefix_lines = itertools.islice(prefix_lines, done.sentences, None)
    options: dict[str, Any] = {
        "prefixes": prefix_lines,
        "lines_before": done.sentences,
        "source_lang": source_lang,
        "target_lang": target_lang,
        "num_beams": 1 if sample else num_beams,
        "max_length": max_length,
        "max_new_tokens": max_new_tokens,
        "length_penalty": length_penalty,
        "n_best": n_best or 1,
        "return_scores": n_best is not None,
        "return_words": json_lines,
        "truncation": truncation,
        "split_sentences": split_sentences,
        "unknown": unknown,
        "sample": sample,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
        "max_batch_tokens": max_batch_tokens,
        "processes": processes,
        "progress": not quiet and not (input == STANDARD_STREAM and sys.stdin.isatty()),
    }
    graphs = exported_folder(model[0])
    needs_torch = {
        "an ensemble": len(model) > 1,
        f"{model[0]}, which has no ONNX graphs,": graphs is None,
        "--terms": terms is not None,
        "--alignments": alignments is not None,
        "--markup": markup is not None,
        "--check_coverage": check_coverage,
        "a launcher of processes": is_launched,
    }
    reasons = [what for what, is_needed in needs_torch.items() if is_needed]
    if graphs is not None and (device not in (None, "cpu") or dtype != "float32"):
        raise ValueError(
            f"{model[0]} has ONNX graphs, which run on the CPU as they were exported: leave out "
            "--device and --dtype."
        )
    if graphs is not None and not reasons:
        windows = _windows_of_graphs(graphs, sentences, **options)
    else:
        for name in model:
            check_folder_or_name(name, "model")
        windows = import_csan_hf("commands.translate", reasons[0]).translate_windows(
            model,
            sentences,
            **options,
            return_alignments=alignments is not None,
            check_coverage=check_coverage,
            markup=markup,
            terms=terms,
            device=device,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
        )
    if is_launched and os.environ.get("RANK", "0") != "0":
        output, alignments_file = os.devnull, None
    write: Callable[[int, list[Translation]], Iterable[OutputLine]]
    if json_lines:
        write = partial(_as_json, with_alignment=alignments is not None)
    elif n_best is None:
        write = _as_text
    else:
        write = _as_columns
    with closing(windows):
        _write_as_they_come(
            _in_lines(windows, write, first=done.sentences + 1),
            output,
            alignments_file,
            written=done.lines,
            kept_lines=done.lines if resume else None,
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


def _windows_of_graphs(
    folder: Path,
    sentences: Iterable[str | None],
    *,
    processes: int | None,
    progress: bool,
    sample: bool,
    seed: int,
    **options: Any,
) -> Generator[list[list[Translation]]]:
    """Loads ONNX graphs and yields the translations of a window of sentences at a time."""
    if importlib.util.find_spec("onnxruntime") is None:
        raise ImportError(
            f"{folder} has ONNX graphs, which need onnxruntime: pip install onnxruntime"
        )
    from tqdm.auto import tqdm

    from csan_hf_runtime.stream import translate_stream
    from csan_hf_runtime.translator import Translator

    translator: AbstractContextManager[Translator | TranslatorPool]
    if processes is None:
        threads = int(os.environ.get("OMP_NUM_THREADS", usable_cores()))
        translator = nullcontext(Translator.from_directory(folder, threads=threads))
    else:
        from csan_hf_runtime.translator_pool import TranslatorPool

        translator = TranslatorPool(processes, folder)
    if sample:
        from numpy.random import default_rng

        options |= {"sample": True, "generator": default_rng(seed)}

    def windows() -> Generator[list[list[Translation]]]:
        bar = tqdm(desc="translating", unit=" sentences", disable=not progress)
        with bar, translator as ready:
            for window in translate_stream(ready, sentences, **options):
                yield window
                bar.update(len(window))

    return windows()


class Progress(NamedTuple):
    """Sentences whose translations a stopped command has left, and the lines that these are."""

    sentences: int = 0
    lines: int = 0


def _go_on(outputs: list[str], *, is_numbered: bool) -> Progress:
    """Finds the last sentence that is there whole in what a stopped command has left of the
    translations, and their alignments.
    """
    partial_files = [partial_name(path) for path in outputs]
    if len({path.is_file() for path in partial_files}) > 1:
        raise ValueError(
            f"{' and '.join(map(str, partial_files))} are not both there: resume with the options "
            "that they were written with."
        )
    lines = min(map(whole_lines, partial_files))
    sentences = lines
    if is_numbered and lines:
        # The last sentence may lack hypotheses
        number = "0"
        for place, line in enumerate(itertools.islice(read_lines(partial_files[0]), sentences)):
            number_of_line, _, _ = line.partition("\t")
            if number_of_line != number:
                number = number_of_line
                lines = place
        if not number.isdecimal():
            raise ValueError(
                f"{partial_files[0]} was not written with --n_best: resume with the options that "
                "it was written with."
            )
        sentences = int(number) - 1
    return Progress(sentences, lines)


class OutputLine(NamedTuple):
    """A line of the output, and the alignment that is written beside it."""

    text: str
    alignment: Iterable[tuple[int, int]] = ()


def _in_lines(
    windows: Iterable[list[list[Translation]]],
    write: Callable[[int, list[Translation]], Iterable[OutputLine]],
    first: int,
) -> Iterator[list[OutputLine]]:
    """Yields the lines that `write` makes of each sentence, by its number and its hypotheses."""
    numbers = itertools.count(first)
    for window in windows:
        lines: list[OutputLine] = []
        for hypotheses in window:
            lines += write(next(numbers), hypotheses)
        yield lines


def _as_text(number: int, hypotheses: list[Translation]) -> Iterable[OutputLine]:
    yield OutputLine(hypotheses[0].text, hypotheses[0].alignment)


def _as_json(
    number: int, hypotheses: list[Translation], *, with_alignment: bool
) -> Iterable[OutputLine]:
    translations = [hypothesis._asdict() for hypothesis in hypotheses]
    if not with_alignment:
        for fields in translations:
            del fields["alignment"]
    text = json.dumps({"line": number, "translations": translations}, ensure_ascii=False)
    yield OutputLine(text, hypotheses[0].alignment)


def _as_columns(number: int, hypotheses: list[Translation]) -> Iterable[OutputLine]:
    for hypothesis in hypotheses:
        columns = f"{number}\t{hypothesis.log_probability:.4f}\t{one_line(hypothesis.text)}"
        yield OutputLine(columns, hypothesis.alignment)


def _write_as_they_come(
    windows: Iterable[list[OutputLine]],
    path: str,
    alignments_path: str | None = None,
    *,
    written: int = 0,
    kept_lines: int | None = None,
) -> None:
    """Writes windows of lines; an error or a signal that ends this says where the lines are."""
    opened = partial(open_for_writing, keep_partial=True, kept_lines=kept_lines)
    try:
        with ExitStack() as stack:
            stack.enter_context(stopping_on_signals())
            file = stack.enter_context(opened(path))
            alignments_file = None
            if alignments_path is not None:
                alignments_file = stack.enter_context(opened(alignments_path))
            for window in windows:
                with beside_bars():
                    file.writelines(f"{one_line(line.text)}\n" for line in window)
                    file.flush()
                if alignments_file is not None:
                    for line in window:
                        links = sorted(set(line.alignment))
                        alignments_file.write(" ".join(f"{s}-{t}" for s, t in links) + "\n")
                    alignments_file.flush()
                written += len(window)
    except KeyboardInterrupt as stop:
        stop.args = (_kept(written, path),)
        raise
    except (OSError, ValueError) as error:
        if written == 0 or isinstance(error, BrokenPipeError):
            raise
        raise ValueError(f"{str(error).rstrip('.')}. {_kept(written, path)}") from error


def _kept(written: int, path: str) -> str:
    """Says where the lines are that were written before the end."""
    place = "written"
    if path != STANDARD_STREAM and partial_name(path).is_file():
        place = f"in {partial_name(path)}"
    verb = "is" if written == 1 else "are"
    return f"{counted(written, 'translation')} {verb} {place}."
