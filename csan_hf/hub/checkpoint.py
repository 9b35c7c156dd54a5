# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Checkpoints that load with nothing but transformers installed."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
)

from ..models.checkpoint_files import auto_map, complete_checkpoint, is_foreign, set_aside_if_foreign
from ..pipelines import translation
from ..pipelines.translation import TARGET_TOKENIZER_SUBFOLDER
from ..text_files import apply_umask

_CLASSIFIERS = (AutoModelForSequenceClassification, AutoModelForTokenClassification)
# What an earlier save may have left in a directory and the new one need not overwrite
_STALE = (
    "model*.safetensors",
    "model.safetensors.index.json",
    "pytorch_model*.bin*",
    "generation_config.json",
    Path(translation.__file__).name,
    TARGET_TOKENIZER_SUBFOLDER,
)


class SavesPretrained(Protocol):
    """A tokenizer, or a pair of tokenizers: what writes itself into a directory."""

    def save_pretrained(self, directory: Any) -> Any:
        """Writes the files of one or both tokenizers into `directory`."""


def save_self_contained(
    model: PreTrainedModel, tokenizers: SavesPretrained | None, directory: str | os.PathLike
) -> Path:
    """Saves a model and its tokenizers, so that it loads and works where csan_hf is not installed.

    Writes what `model.save_pretrained` writes (weights, configs, the family's code and, unless the model is a
    classifier, the translation pipeline) and the tokenizers. All files are written to a temporary folder and then
    moved: if writing fails, `directory` keeps what it held. Other files in it (logs, a card) stay; one with the name
    of a file of code is renamed, with a warning.

    ```python
    AutoModelForSeq2SeqLM.from_pretrained(directory, trust_remote_code=True)
    pipeline("translation", model=directory, trust_remote_code=True)
    pipeline("text-classification", model=directory, trust_remote_code=True)  # of a classifier
    ```

    Args:
        model: A model of csan_hf, unwrapped.
        tokenizers: The tokenizer, or a `TokenizerPair`; None saves none. With separate vocabularies the target
            tokenizer goes to the folder `target_tokenizer`. A classifier reads one language: of a pair, the source's
            is saved.
        directory: Where to save; created if missing.

    Returns:
        `directory` as a `Path`.

    Raises:
        ValueError: The model's code is not in files of its own, its family is not registered with the Auto classes,
            or a model with separate vocabularies came with one tokenizer.
        OSError: The files cannot be written.
    """
    directory = Path(directory)
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"{directory} is a file; a checkpoint needs a directory.")
    with _staging(directory) as staging:
        _write(model, tokenizers, staging)
        _move(staging, directory)
    return directory


def _write(model: PreTrainedModel, tokenizers: SavesPretrained | None, directory: Path) -> None:
    """Writes the whole checkpoint into a new `directory`."""
    if not auto_map(model.config):  # before anything is written
        classes = f"{type(model).__module__}.{type(model).__name__} and {type(model.config).__name__}"
        raise ValueError(
            f"The code of {classes} cannot be saved with the model: they are transformers' own, defined in a script, "
            "or not registered with the Auto classes. Use `model.save_pretrained`, or put classes of your own into a "
            "module and register them."
        )
    directory.mkdir()
    if tokenizers is not None:
        # First: where the target's is missing, saving the model would look for it in the checkpoint that was loaded
        _write_tokenizers(model, tokenizers, directory)
    model.save_pretrained(directory)
    if not json.loads((directory / "config.json").read_bytes()).get(
        "auto_map"
    ):  # a family whose config leaves that to others
        PreTrainedConfig.save_pretrained(complete_checkpoint(model.config, directory), directory)
    apply_umask(directory.glob("*.safetensors"))


def _translates(model: PreTrainedModel) -> bool:
    kind: Any = type(model.config)
    mappings: list[Any] = [auto_class._model_mapping for auto_class in _CLASSIFIERS]
    return not any(kind in mapping and isinstance(model, mapping[kind]) for mapping in mappings)


def _write_tokenizers(model: PreTrainedModel, tokenizers: SavesPretrained, directory: Path) -> None:
    if not _translates(model):
        getattr(tokenizers, "source", tokenizers).save_pretrained(directory)
        return
    tokenizers.save_pretrained(directory)
    folder = directory / TARGET_TOKENIZER_SUBFOLDER
    if getattr(model.config, "share_encoder_decoder_embeddings", True) or folder.is_dir():
        return
    sizes = model.config.vocab_size, model.config.decoder_vocab_size
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"The model has separate vocabularies ({sizes[0]} source and {sizes[1]} target entries) but came with "
            "one tokenizer: pass a TokenizerPair."
        )
    # One tokenizer for two embeddings: saved as the target's, too, or a loader would report that as missing
    getattr(tokenizers, "target", tokenizers).save_pretrained(folder)


@contextmanager
def _staging(directory: Path) -> Iterator[Path]:
    """Yields a path to write a checkpoint to before it is moved, on the file system where it will be.

    That is within the directory where there is one: it may be a link to another file system, or the root of one, as
    the volumes of containers are.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    folder = directory if directory.exists() else directory.parent
    with tempfile.TemporaryDirectory(prefix=f".{directory.name}.", dir=folder) as temporary:
        yield Path(temporary, "checkpoint")


def _move(staging: Path, directory: Path) -> None:
    """Moves `staging` to `directory`, or its entries into it: the config last, as nothing loads without it."""
    if not directory.exists():
        os.rename(staging, directory)
        return
    new = {path.name for path in staging.iterdir()}
    (directory / "config.json").unlink(missing_ok=True)
    for pattern in _STALE:
        for path in directory.glob(pattern):
            if path.suffix == ".py" and is_foreign(path, Path(translation.__file__)):
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name in sorted(new, key=lambda name: name == "config.json"):
        if name.endswith(".py"):
            set_aside_if_foreign(directory / name, staging / name)
        os.replace(staging / name, directory / name)
