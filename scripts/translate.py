#!/usr/bin/env python
"""Translates standard input or a file, line for line; an empty line stays an empty line.

Under `accelerate launch` or torchrun the processes share the work; it then wants --input and --output.
"""

import argparse
import sys
from pathlib import Path

from csan_hf.evaluation import translate
from csan_hf.evaluation.loading import DTYPES, launched_processes, load_translation_model
from csan_hf.files import write_lines


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/translate.py", description=__doc__)
    parser.add_argument("--model", required=True, help="checkpoint folder or Hub name")
    parser.add_argument("--input", type=Path, help="text file, one sentence a line (default: standard input)")
    parser.add_argument("--output", type=Path, help="file for the translations (default: standard output)")
    parser.add_argument("--num_beams", type=int, help="beams (default: the model's)")
    parser.add_argument("--max_length", type=int, help="most target tokens (default: the model's)")
    parser.add_argument("--length_penalty", type=float, help="above 0 favours long beams (default: the model's)")
    parser.add_argument("--max_batch_tokens", type=int, default=4096, help="source tokens in a batch (%(default)s)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1... (default: the accelerator if there is one)")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="float32", help="(default: %(default)s)")
    parser.add_argument("--trust_remote_code", action="store_true", help="run model code from the checkpoint")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser.parse_args(arguments)


def read_sentences(path: Path | None) -> list[str]:
    """Reads lines as UTF-8; only line feeds separate them, so that other separators keep the count."""
    data = sys.stdin.buffer.read() if path is None else path.read_bytes()
    lines = data.decode("utf-8").split("\n")
    if lines and not lines[-1]:
        lines.pop()
    return [line.rstrip("\r") for line in lines]


def main(arguments: list[str]) -> int:
    options = parse_arguments(arguments)
    try:
        processes = launched_processes(options.device)
        if processes is not None and (options.input is None or options.output is None):
            raise ValueError("Several processes cannot share standard input and output: pass --input and --output.")
        sentences = read_sentences(options.input)
        model, tokenizers = load_translation_model(
            options.model,
            device=options.device if processes is None else str(processes.device),
            dtype=options.dtype,
            trust_remote_code=options.trust_remote_code,
        )
        translations = translate(
            model,
            tokenizers,
            sentences,
            max_batch_tokens=options.max_batch_tokens,
            progress=not options.quiet,
            processes=processes,
            num_beams=options.num_beams,
            max_length=options.max_length,
            length_penalty=options.length_penalty,
        )
        if processes is not None:
            processes.destroy_process_group()
            if not processes.is_main_process:
                return 0
        if options.output is not None:
            write_lines(options.output, translations)
            return 0
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    sys.stdout.writelines(f"{' '.join(line.splitlines())}\n" for line in translations)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
