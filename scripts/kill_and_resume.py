#!/usr/bin/env python
# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Kills a training run again and again, and compares its weights with those of a run that was left alone.

    python scripts/kill_and_resume.py
    python scripts/kill_and_resume.py --kills 5 --signals KILL --model pervasive_attention --num_layers 2

The whole process group is signalled, as a scheduler or a terminal does it, by KILL, TERM, INT and USR1 in turn: at its
start, in an update, in a save and at its end in turn. The same command then resumes it. Unknown options are passed on
to `csan-hf train`. The exit status is 1 if a weight, hypothesis or score differs, or if a run ignored a signal or lost
an update that it could have saved.
"""

import argparse
import contextlib
import importlib
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import time
from pathlib import Path

from csan_hf_cli import script

ROOT = Path(__file__).resolve().parents[1]
TINY = (
    "numbers --data.train_size 300 --data.validation_size 16 --data.test_size 16 --tokenizer.vocab_size 300"
    " --d_model 32 --encoder_layers 2 --decoder_layers 1 --encoder_attention_heads 2 --decoder_attention_heads 2"
    " --encoder_ffn_dim 64 --decoder_ffn_dim 64 --max_tokens 1000 --max_steps 160 --eval_steps 10 --logging_steps 1"
    " --learning_rate 5e-3 --warmup_steps 10 --keep_best 3 --bf16 false --use_cpu true --training.seed 3"
    " --num_beams 2 --generation.max_length 24"
)
PHASES = ("start", "update", "save", "end")


class IgnoredSignalError(RuntimeError):
    """A signal that did not end a run which could have been ended."""


class Run:
    """One start of a run in a process group of its own: a fork of this process, which has imported everything."""

    def __init__(self, train, arguments: list[str], output: Path, log: Path) -> None:
        self.train, self.arguments, self.output, self.log = train, arguments, output, log
        log.write_text("")
        self.process = multiprocessing.get_context("fork").Process(target=self._work)
        self.process.start()
        with contextlib.suppress(OSError):  # the child was first
            os.setpgid(self.process.pid, self.process.pid)

    def _work(self) -> None:
        with contextlib.suppress(OSError):  # the parent was first
            os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        descriptor = os.open(self.log, os.O_WRONLY | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.exit(self.train(self.arguments))

    def step(self) -> int:
        """Returns the last update that the run has printed."""
        return max(map(int, re.findall(r"^step (\d+)/", self.log.read_text(), flags=re.MULTILINE)), default=0)

    def is_saving(self) -> bool:
        return any((self.output / "_unfinished").glob("checkpoint-*"))

    def wait_until(self, condition) -> bool:
        """Waits for a condition; False if the run ended before."""
        while not condition():
            if self.process.exitcode is not None:
                return False
            time.sleep(0.005)
        return True

    def signal_group(self, number: int) -> bool:
        """Signals the run and its workers, waits for the end, and says whether the signal ended it.

        Raises:
            IgnoredSignalError: If the run went on training in spite of the signal.
        """
        before = self.step()
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.killpg(self.process.pid, number)
        self.process.join()
        status = self.process.exitcode
        if status not in (0, -number, 128 + number) or (status == 0 and self.step() > before + 1):
            name = signal.Signals(number).name
            raise IgnoredSignalError(f"a run ended with status {status} in spite of {name}: see {self.log}")
        return status != 0

    def lost_update(self, last: int) -> bool:
        """Says whether a run that could have saved ended without a checkpoint of its last update."""
        saved = re.findall(r"at update (\d+) of \d+: saved in", self.log.read_text())
        return 0 < self.step() < last and (not saved or int(saved[-1]) < self.step() or self.is_saving())


def kill_once(run: Run, name: str, phase: str, step: int, rng: random.Random) -> bool:
    """Signals a run in a phase, from an update on; says whether that ended it."""
    if phase == "update":
        run.wait_until(lambda: run.step() > step)
    elif phase == "save":
        run.wait_until(lambda: run.step() >= step and run.is_saving())
    elif phase == "end":
        run.wait_until(lambda: "only the end of the run" in run.log.read_text() or run.step() >= step)
    time.sleep(rng.uniform(0.0, {"start": 1.0, "update": 0.1, "save": 0.02, "end": 0.5}[phase]))
    return run.signal_group(getattr(signal, f"SIG{name}"))


def differences(one: Path, other: Path) -> list[str]:
    """Names what two finished runs do not have in common, bit for bit."""
    newest = max(one.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1])).name
    names = ["model.safetensors", f"{newest}/model.safetensors"]
    names += [f"hypotheses/{split}.txt" for split in ("validation", "test")]
    different = [name for name in names if (one / name).read_bytes() != (other / name).read_bytes()]
    results = [json.loads((folder / "results.json").read_text()) for folder in (one, other)]
    for result in results:
        for scores in result["scores"].values():
            del scores["seconds"], scores["sentences_per_second"]
    return different + [key for key in ("chosen", "scores") if results[0][key] != results[1][key]]


@script({IgnoredSignalError: 1})
def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=40, help="how often the run is ended (default: %(default)s)")
    parser.add_argument("--kill_seed", type=int, default=1, help="seed of the moments (default: %(default)s)")
    names = ["KILL", "TERM", "INT", "USR1"]
    parser.add_argument("--signals", nargs="+", choices=names, default=names, help="(default: all four, in turn)")
    parser.add_argument("--workers", type=int, default=2, help="data-loading workers (default: %(default)s)")
    parser.add_argument("--recipe", help="a recipe with logging_steps 1; without it a tiny one on 'numbers'")
    parser.add_argument("--work_dir", type=Path, default=Path("runs/kill_and_resume"), help="folder, emptied first")
    options, rest = parser.parse_known_args(words)
    shutil.rmtree(options.work_dir, ignore_errors=True)
    options.work_dir.mkdir(parents=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.path.insert(0, str(ROOT))
    for module in ("csan_hf.training", "csan_hf.hub", "torch.utils.tensorboard"):
        importlib.import_module(module)
    train = importlib.import_module("csan_hf.commands.train").main
    recipe = [options.recipe] if options.recipe else TINY.split()

    def start(name: str, log: str) -> Run:
        places = ["--output_dir", str(options.work_dir / name), "--dataloader_num_workers", str(options.workers)]
        return Run(train, [*recipe, *rest, *places], options.work_dir / name, options.work_dir / log)

    def finish(name: str, log: str) -> Run:
        run = start(name, log)
        run.process.join()
        if run.process.exitcode != 0:
            sys.exit(f"A run that was left alone failed: see {run.log}")
        return run

    last, rng, lost = finish("whole", "whole.log").step(), random.Random(options.kill_seed), 0
    moments = [(options.signals[n % len(options.signals)], n // len(options.signals)) for n in range(options.kills)]
    drawn = [(name, PHASES[phase % len(PHASES)], rng.randrange(last)) for name, phase in moments]
    for number, (name, phase, step) in enumerate(
        sorted(drawn, key=lambda moment: last if moment[1] == "end" else moment[2]), start=1
    ):
        run = start("killed", f"killed-{number:02d}.log")
        ended = kill_once(run, name, phase, last if phase == "end" else step, rng)
        missed = ended and name != "KILL" and run.lost_update(last)
        lost += missed
        outcome = "" if ended else ": the run had ended"
        print(
            f"{number:>4}  {name}, {phase}, after update {run.step()}{outcome}{' LOST UPDATES' * missed}", flush=True
        )
    finish("killed", "last.log")
    different = differences(options.work_dir / "whole", options.work_dir / "killed")
    result = f"different: {', '.join(different)}" if different else "bitwise equal"
    print(f"After {options.kills} kills: {result}; signals that lost an update that could have been saved: {lost}.")
    return 1 if different or lost else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
