# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Translates standard input or a file, line for line; an empty line stays an empty line.

Translations are written as they come, a few thousand at a time. If the command is stopped before the end, those that
are written are kept: in FILE.partial, with --output FILE.

Under `accelerate launch` or torchrun the processes share the work; --input and --output are then required.
"""

import argparse
import os
from collections.abc import Iterator

from csan_hf.command_line import script
from csan_hf.evaluation import translate_stream
from csan_hf.evaluation.loading import DTYPES, launched_processes, load_translation_model
from csan_hf.files import STANDARD_STREAM, one_line, open_for_writing, partial_name, read_lines


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="csan-hf translate", description=__doc__)
    parser.add_argument("--model", required=True, help="checkpoint folder or Hub name")
    parser.add_argument(
        "--input",
        default=STANDARD_STREAM,
        help="text file, one sentence per line (may be .gz; default: -, standard input)",
    )
    parser.add_argument(
        "--output", default=STANDARD_STREAM, help="file for the translations (default: -, standard output)"
    )
    parser.add_argument("--num_beams", type=int, help="beams (default: the model's)")
    parser.add_argument("--max_length", type=int, help="most target tokens (default: the model's)")
    parser.add_argument("--length_penalty", type=float, help="above 0 favours long outputs (default: the model's)")
    parser.add_argument("--max_batch_tokens", type=int, default=4096, help="source tokens in a batch (%(default)s)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1... (default: the accelerator if there is one)")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="float32", help="(default: %(default)s)")
    parser.add_argument("--trust_remote_code", action="store_true", help="run model code from the checkpoint")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser.parse_args(arguments)


def write_as_they_come(windows: Iterator[list[str]], path: str) -> None:
    """Writes translations window by window."""
    written = 0
    try:
        with open_for_writing(path, keep_partial=True) as file:
            for translations in windows:
                file.writelines(f"{one_line(text)}\n" for text in translations)
                file.flush()
                written += len(translations)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(describe_kept(written, path)) from None
    except (OSError, ValueError) as error:
        if written == 0 or isinstance(error, BrokenPipeError):
            raise
        raise ValueError(f"{error}. {describe_kept(written, path)}") from error


def describe_kept(written: int, path: str) -> str:
    """Says how many translations are there, and where."""
    is_file = path != STANDARD_STREAM and partial_name(path).is_file()
    where = f"in {partial_name(path)}" if written and is_file else "written"
    return f"{written:,} translations are {where}."


@script()
def main(arguments: list[str]) -> None:
    """Runs `csan-hf translate`."""
    options = parse_arguments(arguments)
    processes = launched_processes(options.device)
    if processes is not None and STANDARD_STREAM in (options.input, options.output):
        raise ValueError("Several processes cannot share standard input and output: pass --input and --output.")
    if options.input != STANDARD_STREAM:
        os.stat(options.input)  # so that a missing file is reported before the model is loaded
    model, tokenizers = load_translation_model(
        options.model,
        device=options.device if processes is None else str(processes.device),
        dtype=options.dtype,
        trust_remote_code=options.trust_remote_code,
        progress=not options.quiet,
    )
    windows = translate_stream(
        model,
        tokenizers,
        read_lines(options.input),
        max_batch_tokens=options.max_batch_tokens,
        progress=not options.quiet,
        processes=processes,
        num_beams=options.num_beams,
        max_length=options.max_length,
        length_penalty=options.length_penalty,
    )
    if processes is None or processes.is_main_process:
        write_as_they_come(windows, options.output)
    else:
        for _ in windows:
            pass  # the main process writes them
    if processes is not None:
        processes.destroy_process_group()
