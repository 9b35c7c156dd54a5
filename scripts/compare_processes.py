#!/usr/bin/env python
# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Trains a tiny model with one process and with several that share the batch, and prints the loss curves.

    python scripts/compare_processes.py [--processes 2] [--output_dir FOLDER] [--key value of a recipe ...]

Without dropout (each process draws masks of its own) R processes with 1/R of the token bound make the updates of one
process that accumulates R batches: that curve shows the rounding alone. One process with the whole bound has as many
tokens in a batch, but other sentences: all of one length, where several batches have several. It is trained twice, in
two orders, to show how much that matters. Finally the model of several processes translates its test sets with one and
with several.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from csan_hf.text_files import read_lines
from csan_hf.training.checkpoints import list_checkpoints
from csan_hf_cli import script

SCRIPTS = Path(__file__).parent
TOKENS = 4000
TINY = {
    "data.train_size": 2000,
    "data.validation_size": 51,
    "data.test_size": 7,
    "tokenizer.vocab_size": 500,
    "config.d_model": 32,
    "config.encoder_layers": 2,
    "config.decoder_layers": 1,
    "config.encoder_ffn_dim": 64,
    "config.decoder_ffn_dim": 64,
    "config.dropout": 0.0,
    "training.max_steps": 120,
    "training.warmup_steps": 20,
    "training.learning_rate": 5e-3,
    "training.eval_steps": 120,
    "training.logging_steps": 10,
    "training.bf16": "false",
    "training.report_to": "none",
    "generation.max_length": 40,
}


def launch(processes: int, name: str, *arguments: object) -> None:
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(SCRIPTS.parent), os.environ.get("PYTHONPATH", "")]),
    }
    environment.setdefault("OMP_NUM_THREADS", "1")
    subprocess.run([*command, "-m", "csan_hf", name, *map(str, arguments)], check=True, env=environment)


def train(folder: Path, processes: int, tokens: int, overrides: list[str], accumulated: int = 1) -> dict[int, float]:
    """Update -> training loss."""
    words = [word for key, value in TINY.items() for word in (f"--{key}", value)]
    words += ["--training.max_tokens", tokens, "--training.gradient_accumulation_steps", accumulated]
    recipe = SCRIPTS / "recipes" / "numbers.yaml"
    launch(processes, "train", recipe, "--output_dir", folder, "--overwrite", *words, *overrides)
    state = json.loads((list_checkpoints(folder)[-1] / "trainer_state.json").read_text())
    return {entry["step"]: entry["loss"] for entry in state["log_history"] if "loss" in entry}


def print_curves(curves: dict[str, dict[int, float]]) -> None:
    """A column for every curve, and how far each is from the first."""
    names = list(curves)
    print("\nupdate  " + "  ".join(names))
    for step in curves[names[0]]:
        print(f"{step:>6}  " + "  ".join(f"{curves[name][step]:>{len(name)}.4f}" for name in names))
    first = curves[names[0]]
    for name in names[1:]:
        largest = max(abs(loss - first[step]) for step, loss in curves[name].items())
        print(f"largest difference of '{name}' from '{names[0]}': {largest:.6f}")


def compare_translations(folder: Path, processes: int) -> None:
    outputs = [folder / f"translated_by_{count}" for count in (1, processes)]
    for count, output in zip((1, processes), outputs, strict=True):
        # Small batches, so that there are several for each process
        launch(count, "evaluate", "--model", folder, "--output_dir", output, "--max_batch_tokens", 200, "--quiet")
    for path in sorted(outputs[0].glob("*.hypotheses.txt")):
        one, several = (list(read_lines(output / path.name)) for output in outputs)
        same = sum(left == right for left, right in zip(one, several, strict=True))
        print(f"{path.name}: {same} of {len(one)} translations equal, {len(set(one))} different ones")


@script({subprocess.CalledProcessError: 1})
def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/compare_processes.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=2, help="processes to compare with one (%(default)s)")
    parser.add_argument("--output_dir", type=Path, help="keeps the runs (default: a temporary folder)")
    options, overrides = parser.parse_known_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        output = options.output_dir or Path(temporary)
        several, count, part = output / "several", options.processes, TOKENS // options.processes
        curves = {
            f"{count} processes": train(several, count, part, overrides),
            f"1 process, {count} batches": train(output / "accumulated", 1, part, overrides, accumulated=count),
            "1 process, 1 batch": train(output / "one", 1, TOKENS, overrides),
            "the same, another order": train(
                output / "other", 1, TOKENS, [*overrides, "--training.data_seed", "1234"]
            ),
        }
        print_curves(curves)
        compare_translations(several, options.processes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
