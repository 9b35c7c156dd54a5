"""The systems of a report: checkpoints, or what other systems have translated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel

from csan_hf.evaluation import translate
from csan_hf.evaluation.loading import load_translation_model
from csan_hf.files import read_lines

if TYPE_CHECKING:
    from csan_hf.data import TokenizerPair


@dataclass
class System:
    """A system and its translations of the test set.

    Attributes:
        name: what the report calls it.
        runs: its translations, one list for each training seed.
        model: the model of the first run, if it is a checkpoint.
        tokenizers: the model's.
    """

    name: str
    runs: list[list[str]]
    model: PreTrainedModel | None = None
    tokenizers: TokenizerPair | None = None


def load_system(
    argument: str,
    sources: Sequence[str],
    *,
    device: str | None = None,
    trust_remote_code: bool = False,
    progress: bool = False,
    **generate_arguments: Any,
) -> System:
    """Reads a system's translations, or makes them.

    Args:
        argument: ``[NAME=]PATH[,PATH…]``. A path is a file with a translation a line, or a checkpoint (a folder, or a
            name on the Hub), which translates the sources. Several paths are the same system trained with several
            seeds.
        sources: the source sentences.
        device: torch device for checkpoints; None = the accelerator if there is one.
        trust_remote_code: whether code in a checkpoint may run.
        progress: shows bars on standard error.
        generate_arguments: for ``generate``, such as ``num_beams``.

    Raises:
        ValueError: if a file has another number of lines than there are sources.
        OSError: if there is no such file or checkpoint.
    """
    name, _, paths = argument.rpartition("=")
    first: System | None = None
    for path in paths.split(","):
        own_name = name or (Path(path).parent.name if path.endswith("/") else Path(path).name)
        if Path(path).is_file():
            run = System(own_name, [_read_translations(path, len(sources))])
        else:
            model, tokenizers = load_translation_model(path, device=device, trust_remote_code=trust_remote_code)
            lines = translate(model, tokenizers, sources, progress=progress, **generate_arguments)
            run = System(own_name, [lines], model, tokenizers)
        if first is None:
            first = run
        else:
            first.runs += run.runs
    assert first is not None
    return first


def _read_translations(path: str, number: int) -> list[str]:
    lines = list(read_lines(path))
    if len(lines) != number:
        raise ValueError(f"{path} has {len(lines)} lines for {number} sources: there must be one for each.")
    return lines
