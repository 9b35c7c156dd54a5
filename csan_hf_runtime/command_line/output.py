# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Output of `csan-hf translate`: lines, columns or JSON, and alignments, as they come."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from csan_hf_runtime.alignment import pharaoh
from csan_hf_runtime.markup import Page
from csan_hf_runtime.settings import Settings
from csan_hf_runtime.subtitles import Subtitles
from csan_hf_runtime.text_files import (
    STANDARD_STREAM,
    check_no_partial,
    check_writable,
    compression_of,
    counted,
    one_line,
    open_for_writing,
    partial_name,
    read_lines,
    whole_lines,
)
from csan_hf_runtime.texts import Translation

from . import stopping_on_signals
from .common import beside_bars


@dataclass(frozen=True)
class OutputOptions(Settings):
    """Where translations are written, and how.

    Attributes:
        output: file for the translations (.gz, .bz2, .xz: compressed); - = standard output
        json_lines: write JSON, a line for each input: its translations with their
            log-probabilities, and those of their words and tokens
        alignments: file for the alignment of each line of the output: 0-0 1-2 = source word 0 with
            word 0 of the translation, 1 with 2 (for a pronouncer, letters); --json_lines has
            it, too, and with "-" is the only place
        resume: continue where the same command was stopped, after the lines in FILE.partial of
            --output FILE (and of --alignments); for files only, and not for compressed outputs
    """

    output: str = STANDARD_STREAM
    json_lines: bool = False
    alignments: str | None = None
    resume: bool = False

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        super().__post_init__()
        if self.alignments == STANDARD_STREAM and not self.json_lines:
            raise ValueError(
                "--alignments -: name a file, or add --json_lines, which holds them, too."
            )
        written = [*self.files, *(str(partial_name(path)) for path in self.files)]
        if len({os.path.realpath(path) for path in written}) < len(written):
            raise ValueError("--output and --alignments are the same file: choose two files.")
        if self.resume and (self.output == STANDARD_STREAM or any(map(compression_of, self.files))):
            raise ValueError(
                "--resume needs --input FILE and --output FILE, and goes on with no compressed "
                "file: name such files."
            )

    @property
    def files(self) -> list[str]:
        """The files that are written, or the standard stream: translations, alignments."""
        return [path for path in (self.output, self.alignments_file) if path is not None]

    @property
    def alignments_file(self) -> str | None:
        """The file of alignments; None where there is none."""
        return None if self.alignments == STANDARD_STREAM else self.alignments

    def check_files(self, inputs: Iterable[str | None]) -> None:
        """Raises `ValueError` where a file cannot be written, or is one of those that are read."""
        for path in self.files:
            check_writable(path, inputs)
            if path != STANDARD_STREAM and not self.resume:
                check_no_partial(partial_name(path))


class Done(NamedTuple):
    """Sentences whose translations a stopped command has left, and the lines that these are."""

    sentences: int = 0
    lines: int = 0


def lines_done(outputs: list[str], *, is_numbered: bool, is_json: bool, documents: bool) -> Done:
    """Finds the last sentence, or the last document, that is there whole in what a stopped command
    has left of the translations, and their alignments.
    """
    partial_files = [partial_name(path) for path in outputs]
    if len({path.is_file() for path in partial_files}) > 1:
        raise ValueError(
            f"{' and '.join(map(str, partial_files))} are not both there: resume with the options "
            "that they were written with."
        )
    lines = min(map(whole_lines, partial_files))
    if documents:  # the lines of a document are translated together
        numbered_lines = enumerate(itertools.islice(read_lines(partial_files[0]), lines), 1)
        lines = max((number for number, line in numbered_lines if not line.strip()), default=0)
    sentences = lines
    first_line = next(iter(read_lines(partial_files[0])), "") if lines else ""
    was_json = first_line.startswith('{"line": 1, "translations": [')
    if lines and was_json != is_json:
        raise _other_options(partial_files[0], "--json_lines", was_given=was_json)
    if not is_numbered and re.match(r"1\t-?\d+\.\d{4}\t", first_line):
        raise _other_options(partial_files[0], "--n_best", was_given=True)
    if is_numbered and lines:
        # The last sentence may lack hypotheses
        number = "0"
        for place, line in enumerate(itertools.islice(read_lines(partial_files[0]), sentences)):
            number_of_line, _, _ = line.partition("\t")
            if number_of_line != number:
                number = number_of_line
                lines = place
        if not number.isdecimal():
            raise _other_options(partial_files[0], "--n_best", was_given=False)
        sentences = int(number) - 1
    return Done(sentences, lines)


def _other_options(path: Path, option: str, *, was_given: bool) -> ValueError:
    was = "was" if was_given else "was not"
    return ValueError(
        f"{path} {was} written with {option}: resume with the options that it was written with."
    )


class OutputPart(NamedTuple):
    """A part of the output, and the alignment that is written beside it."""

    text: str
    alignment: Iterable[tuple[int, int]] = ()


def write_translations(
    windows: Iterable[list[list[Translation]]],
    options: OutputOptions,
    *,
    with_scores: bool,
    done: Done,
    whole_file: Subtitles | Page | None = None,
) -> None:
    """Writes the translations of windows of sentences, a line for each hypothesis or sentence, or
    within a file.

    Args:
        windows: The hypotheses of each sentence of a window.
        options: Where, and how.
        with_scores: Whether all hypotheses are written, with numbers and log-probabilities.
        done: What a stopped command has left.
        whole_file: The file whose texts the sentences are.

    Raises:
        ValueError, OSError, KeyboardInterrupt: What ends the iteration; it says where the lines
            are that were written before.
    """
    write: Callable[[int, list[Translation]], Iterable[OutputPart]] = _as_text
    if options.json_lines:
        write = partial(_as_json, with_alignment=options.alignments is not None)
    elif with_scores:
        write = _as_columns
    elif whole_file is not None:
        write = partial(_within_file, whole_file)
    numbers = itertools.count(done.sentences + 1)

    def in_parts() -> Iterator[list[OutputPart]]:
        for window in windows:
            parts: list[OutputPart] = []
            for hypotheses in window:
                parts += write(next(numbers), hypotheses)
            yield parts

    _write_as_they_come(
        in_parts(),
        path=options.output,
        alignments_path=options.alignments_file,
        is_kept=whole_file is None or options.output == STANDARD_STREAM,
        written=done.lines,
        kept_lines=done.lines if options.resume else None,
    )


def _as_text(number: int, hypotheses: list[Translation]) -> Iterable[OutputPart]:
    yield OutputPart(f"{one_line(hypotheses[0].text)}\n", hypotheses[0].alignment)


def _within_file(
    whole_file: Subtitles | Page, number: int, hypotheses: list[Translation]
) -> Iterable[OutputPart]:
    yield OutputPart(whole_file.written(number - 1, hypotheses[0].text))


def _as_json(
    number: int, hypotheses: list[Translation], *, with_alignment: bool
) -> Iterable[OutputPart]:
    translations = [hypothesis._asdict() for hypothesis in hypotheses]
    for fields in translations:
        del fields["sentences"]
        if not with_alignment:
            del fields["alignment"]
    text = json.dumps({"line": number, "translations": translations}, ensure_ascii=False)
    yield OutputPart(f"{one_line(text)}\n", hypotheses[0].alignment)


def _as_columns(number: int, hypotheses: list[Translation]) -> Iterable[OutputPart]:
    for hypothesis in hypotheses:
        columns = f"{number}\t{hypothesis.log_probability:.4f}\t{one_line(hypothesis.text)}\n"
        yield OutputPart(columns, hypothesis.alignment)


def _write_as_they_come(
    windows: Iterable[list[OutputPart]],
    path: str,
    alignments_path: str | None = None,
    *,
    is_kept: bool,
    written: int = 0,
    kept_lines: int | None = None,
) -> None:
    """Writes windows of translations; an error or a signal that ends this says where they are, if
    they are kept.
    """
    opened = partial(open_for_writing, keep_partial=is_kept, kept_lines=kept_lines)
    try:
        with ExitStack() as stack:
            stack.enter_context(stopping_on_signals())
            file = stack.enter_context(opened(path))
            alignments_file = None
            if alignments_path is not None:
                alignments_file = stack.enter_context(opened(alignments_path))
            for window in windows:
                with beside_bars():
                    file.writelines(part.text for part in window)
                    file.flush()
                if is_kept:
                    written += len(window)
                if alignments_file is not None:
                    for part in window:
                        alignments_file.write(f"{pharaoh(part.alignment)}\n")
                    alignments_file.flush()
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
