# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Multi30k, German to English, 2,000 updates of 7,000 tokens, 15 epochs."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from measuring import Row

from .setting import Measurement, Setting

# Name -> preset of locality, in the recipe of the plain Transformer
SYSTEMS = {"plain": "null", "1D-CSAN": "csan_1d", "2D-CSAN": "csan_2d", "long": "long"}
# The recipes are for an hour on one CPU core; more epochs need dropout
CONVERGING: dict[str, Any] = {
    "max_tokens": 7000,
    "max_steps": 2000,
    "warmup_steps": 250,
    "learning_rate": 2.0e-3,
    "eval_steps": 400,
    "per_device_eval_batch_size": 512,
    "config.dropout": 0.2,
}
TINY: dict[str, Any] = {
    "data.train_size": 100,
    "data.validation_size": 4,
    "data.test_size": 4,
    "config.d_model": 32,
    "config.encoder_layers": 3,
    "config.decoder_layers": 3,
    "max_steps": 2,
    "eval_steps": 2,
    "warmup_steps": 1,
    "max_tokens": 200,
}


def multi30k(setting: Setting) -> Iterator[Measurement]:
    """Scores of each system, all trained beside one another on the one card."""
    with tempfile.TemporaryDirectory() as folder:
        names = ["long"] if setting.tiny else list(SYSTEMS)
        runs = {name: _start(name, Path(folder), setting) for name in names}
        try:
            for name, run in runs.items():
                yield {"system": name}, partial(_scores, name, run, Path(folder), setting)
        finally:
            for run in runs.values():
                run.kill()
                run.wait()


def _start(name: str, folder: Path, setting: Setting) -> subprocess.Popen[bytes]:
    options = {**CONVERGING, "config.preset": SYSTEMS[name], "bf16": setting.device == "cuda"}
    if setting.tiny:
        recipe = "numbers"
        options |= TINY
    else:
        recipe = "multi30k_transformer"
        options["data.data_dir"] = setting.data_dir
    command = [sys.executable, "-m", "csan_hf", "train", recipe]
    command += ["--output_dir", str(folder / name)]
    for option, value in options.items():
        command += [f"--{option}", str(value)]
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def _scores(name: str, run: subprocess.Popen[bytes], folder: Path, setting: Setting) -> Row:
    """The scores of a training, which has until the stage's deadline."""
    run.wait(timeout=max(setting.deadline - time.monotonic(), 1.0))
    results = folder / name / "results.json"
    if not results.is_file():
        log = (folder / f"{name}.log").read_text(errors="replace")
        raise ChildProcessError(" ".join(log[-160:].split()))
    outcome = json.loads(results.read_bytes())
    keys = ("seconds", "updates", "tokens_per_second")
    row: Row = {key: outcome["training"][key] for key in keys}
    for split, scores in outcome["scores"].items():
        row[f"{split}, BLEU"] = scores["bleu"]
    row["weights"] = outcome["chosen"]["weights"]
    return row
