"""The folder of a run: what in it is the run's, and how a new run takes the place of an old one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from csan_hf.files import write_text

from .checkpoints import list_checkpoints
from .options import RecipeError
from .processes import PREPARED_DATA
from .recipe import Recipe

MARK = ".csan_hf_run"
"""File by which a folder is known as one that a run of ours made; `--overwrite` deletes in no other."""

DAMAGED = "_damaged-"
"""What the name of a checkpoint starts with that was set aside."""

_FILES = (
    *("recipe.yaml", "results.json", "training.png", "locality.png", "README.md", "config.json"),
    *("generation_config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json"),
    *("tokenizer_config.json", "special_tokens_map.json", "training_args.bin"),
)
_FOLDERS = ("runs", "hypotheses", "target_tokenizer", PREPARED_DATA)

# Where an old run lies until the new one has begun: while it is moved there or back, then as a whole, then doomed.
_MOVING, _PREVIOUS, _DELETED = "_moving-previous-run", "_previous-run", "_deleted-previous-run"


def entries_of_run(output: Path) -> list[Path]:
    """Lists what lies in a folder under the names of what a run writes."""
    named = [output / name for name in (*_FILES, *_FOLDERS)]
    found = [*list_checkpoints(output), *output.glob(f"{DAMAGED}checkpoint-*"), *output.glob("model-*.safetensors")]
    return found + [path for path in named if path.exists() or path.is_symlink()]


def check_output_folder(recipe: Recipe, output: Path) -> None:
    """Sees to it that a run writes over nothing but what a run of ours wrote.

    Raises:
        RecipeError: if the folder is that of ``init_from``, or one within the other; or if files that a run writes
            lie there and no run of ours made them; or if a checkpoint that the run would go on from or rotate is a
            link: what lies where it leads would be changed.
    """
    if output.exists() and not output.is_dir():
        raise RecipeError(f"output_dir is {output}, which is a file: choose another.")
    _check_initial_folder(recipe, output)
    starts_anew = recipe.overwrite or not recipe.resume
    links = [path for path in list_checkpoints(output) if path.is_symlink()]
    if links and not starts_anew:
        raise RecipeError(
            f"{links[0]} is a link: a run deletes and changes its checkpoints, and would do so where it leads. Put a "
            "copy in its place, or remove it."
        )
    foreign = entries_of_run(output)
    if not foreign or (output / MARK).is_file():
        return
    names = ", ".join(path.name for path in foreign[:3]) + (", ..." if len(foreign) > 3 else "")
    if starts_anew or not list_checkpoints(output):  # those of an older version had no mark and can be resumed
        raise RecipeError(
            f"{output} holds {names}, and no mark of a run ({MARK}) that could have written that: nothing there is "
            "touched. Choose another --output_dir, or move these files away."
        )


def _check_initial_folder(recipe: Recipe, output: Path) -> None:
    if not recipe.init_from or not Path(recipe.init_from).expanduser().exists():
        return
    initial, own = Path(recipe.init_from).expanduser().resolve(), output.resolve()
    if initial == own or own in initial.parents or initial in own.parents:
        raise RecipeError(
            f"output_dir is {output}, and init_from reads {recipe.init_from}: one lies in the other, and the run "
            "would write over what it starts from. Choose another --output_dir."
        )


def mark_run(output: Path) -> None:
    """Makes a folder known as one that a run made."""
    write_text(output / MARK, "A run of csan_hf made this folder; --overwrite deletes what it wrote.\n")


def move_run_aside(output: Path) -> None:
    """Moves what a run wrote aside, within its folder, until `delete_previous_run` or `restore_previous_run`."""
    entries = entries_of_run(output)
    if not entries:
        return
    (output / _MOVING).mkdir()
    for entry in entries:
        entry.rename(output / _MOVING / entry.name)
    (output / _MOVING).rename(output / _PREVIOUS)


def restore_previous_run(output: Path) -> None:
    """Puts a run back whose successor did not begin, also where a kill cut the moving off; else does nothing."""
    shutil.rmtree(output / _DELETED, ignore_errors=True)
    if (output / _PREVIOUS).is_dir():
        for path in entries_of_run(output):  # of the successor
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        (output / _PREVIOUS).rename(output / _MOVING)
    if (output / _MOVING).is_dir():
        for path in (output / _MOVING).iterdir():
            path.rename(output / path.name)
        (output / _MOVING).rmdir()


def delete_previous_run(output: Path) -> None:
    """Deletes what `move_run_aside` moved, if there is anything."""
    if (output / _PREVIOUS).is_dir():
        (output / _PREVIOUS).rename(output / _DELETED)
    shutil.rmtree(output / _DELETED, ignore_errors=True)


class DeletePreviousRun(TrainerCallback):
    """Deletes the run that this one takes the place of, once its first update is done."""

    def __init__(self) -> None:
        self.done = False

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Deletes it, in one process."""
        if not self.done and state.is_world_process_zero:
            delete_previous_run(Path(args.output_dir))
        self.done = True
