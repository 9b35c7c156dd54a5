#!/usr/bin/env python
"""Trains a tiny model with one process and with several that share the same batch, and prints both loss curves.

    python scripts/compare_processes.py [--processes 2] [--output_dir FOLDER] [--key value of a recipe ...]

The batches hold as many tokens, but not the same sentences: as a yardstick a second single process sees the data in another
order. At last the model of several processes translates its test sets with one process and with several.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from csan_hf.evaluation.loading import read_lines
from csan_hf.training.checkpoints import list_checkpoints

SCRIPTS = Path(__file__).parent
TOKENS = 4000
TINY = {
    "data.train_size": 3000,
    "data.validation_size": 51,
    "data.test_size": 7,
    "tokenizer.vocab_size": 500,
    "config.d_model": 64,
    "config.encoder_layers": 2,
    "config.decoder_layers": 1,
    "config.encoder_ffn_dim": 128,
    "config.decoder_ffn_dim": 128,
    "training.max_steps": 160,
    "training.warmup_steps": 20,
    "training.learning_rate": 5e-3,
    "training.eval_steps": 80,
    "training.logging_steps": 10,
    "training.report_to": "none",
    "generation.max_length": 60,
}


def launch(processes: int, script: str, *arguments: object) -> None:
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SCRIPTS.parent), os.environ.get("PYTHONPATH", "")])}
    environment.setdefault("OMP_NUM_THREADS", "1")
    subprocess.run([*command, str(SCRIPTS / script), *map(str, arguments)], check=True, env=environment)


def train(processes: int, folder: Path, overrides: list[str]) -> dict[int, float]:
    """Update -> training loss."""
    arguments = [word for key, value in TINY.items() for word in (f"--{key}", value)]
    recipe = SCRIPTS / "recipes" / "numbers.yaml"
    bound = ["--training.max_tokens", TOKENS // processes]
    launch(processes, "train.py", recipe, "--output_dir", folder, "--overwrite", *arguments, *bound, *overrides)
    state = json.loads((list_checkpoints(folder)[-1] / "trainer_state.json").read_text())
    return {entry["step"]: entry["loss"] for entry in state["log_history"] if "loss" in entry}


def print_curves(curves: list[dict[int, float]], processes: int) -> None:
    one, several, other = curves
    print(f"update  1 process  {processes} processes  difference  1 process, another order  difference")
    for step, loss in one.items():
        print(
            f"{step:>6}  {loss:>9.4f}  {several[step]:>11.4f}  {several[step] - loss:>+10.4f}  "
            f"{other[step]:>24.4f}  {other[step] - loss:>+10.4f}"
        )
    for name, curve in ((f"{processes} processes", several), ("another order", other)):
        print(f"largest difference, {name}: {max(abs(curve[step] - loss) for step, loss in one.items()):.4f}")


def compare_translations(folder: Path, processes: int) -> None:
    outputs = [folder / f"translated_by_{count}" for count in (1, processes)]
    for count, output in zip((1, processes), outputs, strict=True):
        # Small batches, so that there are several for each process
        launch(count, "evaluate.py", "--model", folder, "--output_dir", output, "--max_batch_tokens", 200, "--quiet")
    for path in sorted(outputs[0].glob("*.hypotheses.txt")):
        one, several = (read_lines(output / path.name) for output in outputs)
        same = sum(left == right for left, right in zip(one, several, strict=True))
        print(f"{path.name}: {same} of {len(one)} translations equal, {len(set(one))} different ones")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/compare_processes.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=2, help="processes to compare with one (%(default)s)")
    parser.add_argument("--output_dir", type=Path, help="keeps the runs (default: a temporary folder)")
    options, overrides = parser.parse_known_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        output = options.output_dir or Path(temporary)
        several = output / "several"
        curves = [
            train(1, output / "one", overrides),
            train(options.processes, several, overrides),
            train(1, output / "other", [*overrides, "--training.data_seed", "1234"]),
        ]
        print_curves(curves, options.processes)
        compare_translations(several, options.processes)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
