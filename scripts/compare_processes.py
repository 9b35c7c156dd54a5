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

from kill_and_resume import TINY

from csan_hf.text_files import read_lines
from csan_hf.training.checkpoints import list_checkpoints
from csan_hf_cli import script

TOKENS = 4000
OPTIONS = (
    " --data.train_size 2000 --data.validation_size 51 --data.test_size 7 --tokenizer.vocab_size 500"
    " --config.dropout 0 --max_steps 120 --warmup_steps 20 --eval_steps 120 --logging_steps 10"
    " --generation.max_length 40 --overwrite"
)


def launch(processes: int, name: str, *arguments: object) -> None:
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path}
    subprocess.run([*command, "-m", "csan_hf", name, *map(str, arguments)], check=True, env=environment)


def train(folder: Path, processes: int, tokens: int, overrides: list[str], accumulated: int = 1) -> dict[int, float]:
    """Update -> training loss."""
    options = ["--output_dir", folder, "--max_tokens", tokens, "--gradient_accumulation_steps", accumulated]
    launch(processes, "train", *(TINY + OPTIONS).split(), *options, *overrides)
    state = json.loads((list_checkpoints(folder)[-1] / "trainer_state.json").read_text())
    return {entry["step"]: entry["loss"] for entry in state["log_history"] if "loss" in entry}


def print_curves(curves: dict[str, dict[int, float]]) -> None:
    """A column for every curve, and how far each is from the first."""
    print("\nupdate  " + "  ".join(curves))
    first_name, first = next(iter(curves.items()))
    for step in first:
        print(f"{step:>6}  " + "  ".join(f"{curve[step]:>{len(name)}.4f}" for name, curve in curves.items()))
    for name, curve in curves.items():
        largest = max(abs(loss - first[step]) for step, loss in curve.items())
        print(f"largest difference of '{name}' from '{first_name}': {largest:.6f}")


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
    options, own = parser.parse_known_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        output = options.output_dir or Path(temporary)
        several, count, part = output / "several", options.processes, TOKENS // options.processes
        curves = {
            f"{count} processes": train(several, count, part, own),
            f"1 process, {count} batches": train(output / "accumulated", 1, part, own, accumulated=count),
            "1 process, 1 batch": train(output / "one", 1, TOKENS, own),
            "the same, another order": train(output / "other", 1, TOKENS, [*own, "--training.data_seed", "1234"]),
        }
        print_curves(curves)
        compare_translations(several, options.processes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
