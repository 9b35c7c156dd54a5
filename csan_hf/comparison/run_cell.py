# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""One cell of a suite in a process of its own: `python -m csan_hf.comparison.run_cell RECIPE.yaml`.

The process ends, after saving, when the suite that started it is gone.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

from csan_hf.text_files import write_json
from csan_hf.training.checkpoints import list_checkpoints
from csan_hf.training.output_folder import lock_folder
from csan_hf.training.recipe import RecipeError, load_recipe
from csan_hf.training.run import train_from_recipe
from csan_hf.training.stopping import RunError, RunInterrupted
from csan_hf_cli import script

from .schedule import FINISHED, PARENT, RECIPE


@script({RunError: 1})
def main(arguments: list[str]) -> int:
    """Trains the cell of a recipe."""
    if len(arguments) != 1:
        raise RecipeError("one argument is needed, the recipe of a suite's cell.")
    recipe = load_recipe(arguments[0])
    output = Path(str(recipe.output_dir))
    if Path(arguments[0]).resolve() != (output / RECIPE).resolve():  # the checkpoints of another run stay
        raise RecipeError(f"{arguments[0]} is no cell of a suite: `csan-hf train` trains a recipe.")
    threading.Thread(target=_end_with, args=(int(os.environ.get(PARENT, os.getppid())),), daemon=True).start()
    _wait_until_free(output)
    if (output / "results.json").is_file() and not list_checkpoints(output):
        raise RecipeError(
            f"{output} holds a run's results without {FINISHED} and without checkpoints: delete that folder, and the "
            "suite trains that run again."
        )
    start = time.time()
    try:
        results = train_from_recipe(recipe)
    except RunInterrupted as stop:
        print(stop, file=sys.stderr)
        return stop.exit_code
    seconds = {"seconds_of_last_process": round(time.time() - start, 1), "seconds": results["training"]["seconds"]}
    write_json(output / FINISHED, {**seconds, "process_seconds": round(time.process_time(), 1)})
    # Only training needs them; last, since a run without its checkpoints could be neither finished nor resumed
    for checkpoint in list_checkpoints(output):
        shutil.rmtree(checkpoint)
    return 0


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGTERM)


def _wait_until_free(output: Path, seconds: float = 300.0) -> None:
    """Waits while a run that lost its suite is still saving in the folder."""
    end = time.time() + seconds
    while True:
        try:
            with lock_folder(output):
                return
        except RecipeError:
            if time.time() > end:
                raise
        time.sleep(1.0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
