"""Work that one of several processes does for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from accelerate.utils import broadcast_object_list

from .arguments import TranslationTrainingArguments
from .options import RecipeError

T = TypeVar("T")

PREPARED_DATA = "_prepared_data"
"""Folder in ``output_dir`` with the tokenized corpus while several processes train; uploads leave out its like."""


def on_main_process(args: TranslationTrainingArguments, work: Callable[[], T]) -> T:
    """Does some work in the main process while the others wait, and gives its result to all.

    A result that every process found for itself could differ: files come and go, and a network file system shows
    them to the nodes at different moments.

    Args:
        args: of the run; with one process this is a plain call.
        work: returns something that can be pickled. The others wait no longer than ``args.ddp_timeout`` seconds.

    Raises:
        RecipeError: in every process, if the main one met it.
    """
    if args.world_size == 1:
        return work()
    outcome: list[T | None] = [None]
    failure: list[str | None] = [None]
    if args.process_index == 0:
        try:
            outcome[0] = work()
        except RecipeError as error:
            failure[0] = str(error)
    broadcast_object_list(failure)
    if failure[0] is not None:
        raise RecipeError(failure[0])
    broadcast_object_list(outcome)
    return outcome[0]  # type: ignore[return-value]
