#!/usr/bin/env python
# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Kills a training run again and again, and compares its weights with those of a run that was left alone.

    python scripts/kill_and_resume.py
    python scripts/kill_and_resume.py --kills 5 --signals KILL --model pervasive_attention --num_layers 2

The process group is signalled, as a scheduler or a terminal does it: at its start, in an update, in a save and at
its end in turn. The same command then resumes it. Unknown options are passed on to `csan-hf train`. The exit status is
1 if a weight, hypothesis or score differs, or if a run ignored a signal or lost an update that it could have saved.
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

TINY = (
    "numbers --data.train_size 300 --data.validation_size 16 --data.test_size 16 --tokenizer.vocab_size 300"
    " --d_model 32 --encoder_layers 2 --decoder_layers 1 --encoder_attention_heads 2 --decoder_attention_heads 2"
    " --encoder_ffn_dim 64 --decoder_ffn_dim 64 --max_tokens 1000 --max_steps 160 --eval_steps 10 --logging_steps 1"
    " --learning_rate 5e-3 --warmup_steps 10 --keep_best 3 --bf16 false --use_cpu true --training.seed 3"
    " --num_beams 2 --generation.max_length 24"
)
LONGEST_PAUSE = {"start": 1.0, "update": 0.1, "save": 0.02, "end": 0.5}  # seconds in a phase before the signal


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
        """Signals the run and its workers, waits for the end, and says whether the signal ended it."""
        before = self.step()
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.killpg(self.process.pid, number)
        self.process.join()
        status = self.process.exitcode
        if status not in (0, -number, 128 + number) or (status == 0 and self.step() > before + 1):
            name = signal.Signals(number).name
            raise IgnoredSignalError(f"a run ended with status {status} in spite of {name}: see {self.log}")
        return status != 0

    def kill(self, name: str, phase: str, step: int, pause: float) -> bool:
        """Signals the run in a phase, from an update on; says whether that ended it."""
        conditions = {
            "start": lambda: True,
            "update": lambda: self.step() > step,
            "save": lambda: self.step() >= step and self.is_saving(),
            "end": lambda: "only the end of the run" in self.log.read_text() or self.step() >= step,
        }
        self.wait_until(conditions[phase])
        time.sleep(pause * LONGEST_PAUSE[phase])
        return self.signal_group(getattr(signal, f"SIG{name}"))

    def lost_update(self, last: int) -> bool:
        """Says whether a run that could have saved ended without a checkpoint of its last update."""
        saved = re.findall(r"at update (\d+) of \d+: saved in", self.log.read_text())
        return 0 < self.step() < last and (not saved or int(saved[-1]) < self.step() or self.is_saving())


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
    for module in ("csan_hf.training", "csan_hf.hub", "torch.utils.tensorboard"):
        importlib.import_module(module)
    train = importlib.import_module("csan_hf.commands.train").main
    recipe = [options.recipe] if options.recipe else TINY.split()

    def start(name: str, log: str, *, alone: bool = False) -> Run:
        places = ["--output_dir", str(options.work_dir / name), "--dataloader_num_workers", str(options.workers)]
        run = Run(train, [*recipe, *rest, *places], options.work_dir / name, options.work_dir / log)
        if alone:
            run.process.join()
        if alone and run.process.exitcode != 0:
            sys.exit(f"A run that was left alone failed: see {run.log}")
        return run

    last, rng, lost = start("whole", "whole.log", alone=True).step(), random.Random(options.kill_seed), 0
    phases, names = list(LONGEST_PAUSE), options.signals
    drawn = [(names[n % len(names)], phases[n // len(names) % 4], rng.randrange(last)) for n in range(options.kills)]
    moments = sorted((last if phase == "end" else step, name, phase) for name, phase, step in drawn)
    for number, (step, name, phase) in enumerate(moments, start=1):
        run = start("killed", f"killed-{number:02d}.log")
        ended = run.kill(name, phase, step, rng.random())
        missed = ended and name != "KILL" and run.lost_update(last)
        lost += missed
        outcome = "" if ended else ": the run had ended"
        told = f"{name}, {phase}, after update {run.step()}{outcome}{' LOST UPDATES' * missed}"
        print(f"{number:>4}  {told}", flush=True)
    start("killed", "last.log", alone=True)
    different = differences(options.work_dir / "whole", options.work_dir / "killed")
    result = f"different: {', '.join(different)}" if different else "bitwise equal"
    print(f"After {options.kills} kills: {result}; signals that lost an update that could have been saved: {lost}.")
    return 1 if different or lost else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
