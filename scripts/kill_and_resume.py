#!/usr/bin/env python
# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Kills a training run again and again, and compares its weights with those of a run that was left alone.

    python scripts/kill_and_resume.py
    python scripts/kill_and_resume.py --kills 5 --signals KILL --model pervasive_attention --num_layers 2

The run, with data-loading workers, is signalled as a scheduler or a terminal does it: the whole process group at once,
by KILL, TERM, INT and USR1 in turn, at random moments of its start, its updates, its saves and its end; and started
again with the same command each time. Unknown options are passed on to `csan-hf train`. The exit status is 1 if any
weight, hypothesis or score differs, if one of the other signals lost an update, or if a run went on in spite of one.
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
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from csan_hf_cli import script

ROOT = Path(__file__).resolve().parents[1]
RECIPE = {
    "data": {
        "dataset": "numbers",
        "source_lang": "en",
        "target_lang": "de",
        "train_size": 300,
        "validation_size": 16,
        "test_size": 16,
    },
    "tokenizer": {"vocab_size": 300},
    "config": {
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
    },
    "training": {
        "max_tokens": 1000,
        "max_steps": 160,
        "eval_steps": 10,
        "logging_steps": 1,
        "learning_rate": 5.0e-3,
        "warmup_steps": 10,
        "keep_best": 3,
        "bf16": False,
        "use_cpu": True,
        "seed": 3,
    },
    "generation": {"num_beams": 2, "max_length": 24},
}

ENDED = "The run has ended with status "


class IgnoredSignalError(RuntimeError):
    """A signal that did not end a run which could have been ended."""


@dataclass
class Run:
    """One start of `csan-hf train` in a process group of its own, and what it has printed.

    The process is a fork of this one, which has imported everything and computed nothing: importing would take most of
    the time.
    """

    train: Callable[[list[str]], int]
    arguments: list[str]
    output: Path
    log: Path
    process: Any = field(init=False)
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.log.write_text("")
        self.started = time.time()
        self.process = multiprocessing.get_context("fork").Process(target=self._work)
        self.process.start()
        with contextlib.suppress(OSError):  # the other of the two was first
            os.setpgid(self.process.pid, self.process.pid)

    def _work(self) -> None:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        descriptor = os.open(self.log, os.O_WRONLY | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        status = self.train(self.arguments)
        os.write(descriptor, f"{ENDED}{status}\n".encode())
        sys.exit(status)

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def step(self) -> int:
        return max(map(int, re.findall(r"^step (\d+)/", self.text(), flags=re.MULTILINE)), default=0)

    def wait_until(self, condition) -> bool:
        """Waits for a condition; False if the run ended before."""
        while not condition():
            if self.process.exitcode is not None:
                return False
            time.sleep(0.005)
        return True

    def signal_group(self, number: int) -> bool:
        """Signals the run and its workers, waits for the end, and says whether there was something to end.

        The run stands still meanwhile, so that it does not end between the look and the signal.

        Raises:
            IgnoredSignalError: if the run went on in spite of the signal.
        """
        os.killpg(self.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        had_ended = ENDED in self.text()
        os.killpg(self.process.pid, number)
        os.killpg(self.process.pid, signal.SIGCONT)
        status = self.wait()
        if not had_ended and status not in (-number, 128 + number):
            raise IgnoredSignalError(
                f"a run ended with status {status} in spite of {signal.Signals(number).name}: see {self.log}"
            )
        return not had_ended

    def wait(self) -> int:
        """Waits for the end and returns the exit status, for a signal its negative number."""
        self.process.join()
        return self.process.exitcode


def incomplete(output: Path) -> list[str]:
    """Names of the checkpoints that are being saved."""
    return [path.name for path in (output / "_saving").glob("checkpoint-*")]


@dataclass(frozen=True)
class Moment:
    """When a run is signalled, and how.

    Args:
        signal: name of the signal, without SIG.
        phase: what the run is to be doing: "start", "update", "save" or "end".
        step: the update from which the phase counts.
    """

    signal: str
    phase: str
    step: int


def plan(kills: int, last: int, signals: list[str], rng: random.Random) -> list[Moment]:
    """Draws the moments, in the order in which a run can meet them; every signal meets every phase."""
    phases = ["start", "update", "save", "end", "update", "save"]
    drawn = [(signals[number % len(signals)], phases[number // len(signals) % len(phases)]) for number in range(kills)]
    moments = [Moment(name, phase, last if phase == "end" else rng.randrange(last)) for name, phase in drawn]
    return sorted(moments, key=lambda moment: moment.step)


def kill_once(run: Run, moment: Moment, times: dict[str, float], rng: random.Random) -> tuple[bool, str]:
    """Signals a run at a random time of a phase. Says whether that ended it, and what it was doing."""
    phase, step = moment.phase, moment.step
    if phase == "start":
        latest = run.started + rng.uniform(0.0, times["start"])
        run.wait_until(lambda: run.step() > 0 or time.time() > latest)  # a start may be faster than the first one
    elif phase == "update":
        run.wait_until(lambda: run.step() > step)
        time.sleep(rng.uniform(0.0, times["update"]))
    elif phase == "save":
        run.wait_until(lambda: run.step() >= step and incomplete(run.output))
        time.sleep(rng.uniform(0.0, times["save"]))
    else:
        text = "only the end of the run is repeated"
        run.wait_until(lambda: run.step() >= step or text in run.text())
        time.sleep(rng.uniform(0.0, 0.8 * times["end"]))
    if run.process.exitcode is not None or not run.signal_group(getattr(signal, f"SIG{moment.signal}")):
        return False, f"{moment.signal}, {phase}: the run had ended with {run.process.exitcode}"
    cut_off = incomplete(run.output)
    where = f"after update {run.step()}" if run.step() else f"{time.time() - run.started:.1f} s after the start"
    return True, f"{moment.signal}, {phase}: {where}" + (f", in the save of {cut_off[-1]}" if cut_off else "")


def lost_update(run: Run, last: int) -> bool:
    """Says whether a run that could have saved ended without a checkpoint of its last update."""
    saved = re.findall(r"at update (\d+) of \d+: saved in", run.text())
    return 0 < run.step() < last and (not saved or int(saved[-1]) < run.step() or bool(incomplete(run.output)))


def measure(run: Run, last: int) -> dict[str, float]:
    """Lets a run go through, and returns the seconds of its start, an update, a save and its end."""
    run.wait_until(lambda: run.step() > 0)
    start = time.time()
    run.wait_until(lambda: bool(incomplete(run.output)))
    saving = time.time()
    run.wait_until(lambda: not incomplete(run.output))
    saved = time.time()
    run.wait_until(lambda: run.step() >= last)
    end = time.time()
    if run.wait() != 0:
        sys.exit(f"The run that was left alone failed:\n{run.text()}")
    return {
        "start": start - run.started,
        "update": (end - start) / last,
        "save": saved - saving,
        "end": time.time() - end,
    }


def reports(run: Run) -> tuple[str, str]:
    """Returns what a run resumed from and what it skipped, from its own words."""
    text = run.text()
    found = re.search(r"Resuming from \S*(checkpoint-\d+) \((?:skipped (.*); )?--overwrite", text)
    if found:
        return found[1], found[2] or ""
    anew = re.search(
        r"Starting a new run in \S+?(?:, because no checkpoint had been finished: deleted (.*))?\.\n", text
    )
    return ("the beginning", anew[1] or "") if anew else ("(killed before it said)", "")


def differences(one: Path, other: Path) -> list[str]:
    """Names what two finished runs do not have in common, bit for bit."""
    names = ["model.safetensors", *(f"hypotheses/{split}.txt" for split in ("validation", "test"))]
    different = [name for name in names if (one / name).read_bytes() != (other / name).read_bytes()]
    newest = max(one.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1])).name
    if (one / newest / "model.safetensors").read_bytes() != (other / newest / "model.safetensors").read_bytes():
        different.append(f"{newest}/model.safetensors")
    results = [json.loads((folder / "results.json").read_text()) for folder in (one, other)]
    for result in results:
        for scores in result["scores"].values():
            for name in ("seconds", "sentences_per_second"):
                del scores[name]
    return different + [key for key in ("chosen", "scores") if results[0][key] != results[1][key]]


def import_everything() -> Callable[[list[str]], int]:
    """Imports what a run needs, for one thread, and returns the main function of `csan-hf train`."""
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.path.insert(0, str(ROOT))
    for module in ("csan_hf.training", "csan_hf.hub", "torch.utils.tensorboard"):
        importlib.import_module(module)
    return importlib.import_module("csan_hf.commands.train").main


def parse_arguments(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=40, help="how often the run is ended (default: %(default)s)")
    parser.add_argument("--kill_seed", type=int, default=1, help="seed of the moments (default: %(default)s)")
    names = ["KILL", "TERM", "INT", "USR1"]
    parser.add_argument("--signals", nargs="+", choices=names, default=names, help="(default: all four, in turn)")
    parser.add_argument("--workers", type=int, default=2, help="data-loading workers (default: %(default)s)")
    parser.add_argument("--recipe", help="a recipe with logging_steps 1; without it a tiny one on 'numbers'")
    parser.add_argument("--work_dir", type=Path, default=Path("runs/kill_and_resume"), help="folder, emptied first")
    return parser.parse_known_args(words)


@script({IgnoredSignalError: 1})
def main(words: list[str]) -> int:
    arguments, rest = parse_arguments(words)
    work = arguments.work_dir
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    recipe = Path(arguments.recipe or work / "tiny.yaml")
    if not arguments.recipe:
        recipe.write_text(yaml.safe_dump(RECIPE, sort_keys=False))
    rng = random.Random(arguments.kill_seed)

    train = import_everything()

    def start(name: str, log: str) -> Run:
        options = ["--output_dir", str(work / name), "--dataloader_num_workers", str(arguments.workers)]
        return Run(train, [str(recipe), *rest, *options], work / name, work / log)

    last = int(yaml.safe_load(recipe.read_text())["training"]["max_steps"])
    times = measure(start("whole", "whole.log"), last)
    print("Uninterrupted:", ", ".join(f"{name} {seconds:.2f} s" for name, seconds in times.items()), flush=True)
    print(f"{'kill':>4}  {'moment':<58}  {'resumed from':<24}  skipped", flush=True)
    moments = plan(arguments.kills, last, arguments.signals, rng)
    gone_through, lost, done = False, 0, list[Moment]()
    for number, moment in enumerate(moments, start=1):
        while True:
            run = start("killed", f"killed-{number:02d}.log")
            now = replace(moment, phase="start") if gone_through else moment
            ended, what = kill_once(run, now, times, rng)
            if ended:
                break
            print(f"{'':>4}  {what}: too late, not counted", flush=True)
            if run.process.exitcode != 0:
                print(run.text())
                return 1
            # From here on a run only reads its folder and repeats its end: any moment of that
            gone_through, times["start"] = True, 0.9 * (time.time() - run.started)
        done.append(now)
        came_from, skipped = reports(run)
        if moment.signal != "KILL" and lost_update(run, last):
            lost, what = lost + 1, f"{what}; LOST UPDATES"
        print(f"{number:>4}  {what:<58}  {came_from:<24}  {skipped}", flush=True)
    run = start("killed", "last.log")
    if run.wait() != 0:
        print(run.text())
        return 1
    came_from, skipped = reports(run)
    print(f"{'':>4}  {'to the end':<58}  {came_from:<24}  {skipped}")
    return report(done, lost, differences(work / "whole", work / "killed"))


def report(moments: list[Moment], lost: int, different: list[str]) -> int:
    """Prints how often each signal met each phase and what came of it; returns the exit status."""
    phases = list(dict.fromkeys(moment.phase for moment in moments))
    for name in dict.fromkeys(moment.signal for moment in moments):
        counts = [(phase, sum((m.signal, m.phase) == (name, phase) for m in moments)) for phase in phases]
        print(f"{name:>6}: " + ", ".join(f"{count} in the phase {phase}" for phase, count in counts))
    outcome = f"different: {', '.join(different)}" if different else "bitwise equal"
    print(f"After {len(moments)} kills: {outcome}; signals that lost an update that could have been saved: {lost}.")
    return 1 if different or lost else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
