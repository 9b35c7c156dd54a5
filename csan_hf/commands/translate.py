# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""`csan-hf translate`."""

import os
from collections.abc import Iterator

from csan_hf.evaluation import translate_stream
from csan_hf.evaluation.loading import launched_processes, load_translation_model
from csan_hf.text_files import STANDARD_STREAM, one_line, open_for_writing, partial_name, read_lines

from . import Dtype, PositiveInt


def translate(
    *,
    model: str,
    input: str = STANDARD_STREAM,
    output: str = STANDARD_STREAM,
    source_lang: str | None = None,
    target_lang: str | None = None,
    num_beams: PositiveInt | None = None,
    max_length: PositiveInt | None = None,
    max_new_tokens: PositiveInt | None = None,
    length_penalty: float | None = None,
    truncation: bool = False,
    max_batch_tokens: PositiveInt = 4096,
    device: str | None = None,
    dtype: Dtype = "float32",
    trust_remote_code: bool = False,
    quiet: bool = False,
) -> None:
    """Translates standard input or a file, line for line; an empty line stays an empty line.

    Translations are written as they come, a few thousand at a time. If the command is stopped before the end, those
    that are written are kept: in FILE.partial, with --output FILE.

    Under `accelerate launch` or torchrun the processes share the work; --input and --output are then required.

    Args:
        input: text file, one sentence per line (may be .gz); - = standard input
        output: file for the translations; - = standard output
    """
    processes = launched_processes(device)
    if processes is not None and STANDARD_STREAM in (input, output):
        raise ValueError("Several processes cannot share standard input and output: pass --input and --output.")
    if input != STANDARD_STREAM:
        os.stat(input)  # so that a missing file is reported before the model is loaded
    network, tokenizers = load_translation_model(
        model,
        device=device if processes is None else str(processes.device),
        dtype=dtype,
        trust_remote_code=trust_remote_code,
        progress=not quiet,
    )
    windows = translate_stream(
        network,
        tokenizers,
        read_lines(input),
        max_batch_tokens=max_batch_tokens,
        progress=not quiet,
        processes=processes,
        src_lang=source_lang,
        tgt_lang=target_lang,
        num_beams=num_beams,
        max_length=max_length,
        max_new_tokens=max_new_tokens,
        length_penalty=length_penalty,
        truncation=truncation or None,
    )
    if processes is None or processes.is_main_process:
        _write_as_they_come(windows, output)
    else:
        for _ in windows:
            pass  # the main process writes them
    if processes is not None:
        processes.destroy_process_group()


def _write_as_they_come(windows: Iterator[list[str]], path: str) -> None:
    written = 0
    try:
        with open_for_writing(path, keep_partial=True) as file:
            for translations in windows:
                file.writelines(f"{one_line(text)}\n" for text in translations)
                file.flush()
                written += len(translations)
    except (KeyboardInterrupt, OSError, ValueError) as error:
        partial = partial_name(path)
        kept = f"in {partial}" if written and path != STANDARD_STREAM and partial.is_file() else "written"
        kept = f"{written:,} translations are {kept}."
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(kept) from None
        if written == 0 or isinstance(error, BrokenPipeError):
            raise
        raise ValueError(f"{error}. {kept}") from error
