# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Checkpoints that load with nothing but transformers installed."""

import copy
import filecmp
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from transformers import (
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.dynamic_module_utils import custom_object_save

from ..files import apply_umask
from ..pipelines import translation
from ..pipelines.translation import TARGET_TOKENIZER_SUBFOLDER, TranslationPipeline

# The auto classes whose registered model classes a checkpoint offers under `trust_remote_code=True`
_TRANSLATING = (AutoModel, AutoModelForSeq2SeqLM)
_AUTO_CLASSES = (*_TRANSLATING, AutoModelForSequenceClassification, AutoModelForTokenClassification)
# What an earlier save may have left in a directory and the new one need not overwrite
_STALE = (
    "model*.safetensors",
    "model.safetensors.index.json",
    "pytorch_model*.bin*",
    "generation_config.json",
    Path(translation.__file__).name,
    TARGET_TOKENIZER_SUBFOLDER,
)
CUSTOM_PIPELINES = {
    "translation": {
        "impl": f"{TranslationPipeline.__module__.split('.')[-1]}.{TranslationPipeline.__name__}",
        "pt": [AutoModelForSeq2SeqLM.__name__],
        "type": "text",
    }
}


class SavesPretrained(Protocol):
    """A tokenizer, or a pair of tokenizers: what writes itself into a directory."""

    def save_pretrained(self, directory: Any) -> Any:
        """Writes the files of one or both tokenizers into `directory`."""


def save_self_contained(
    model: PreTrainedModel, tokenizers: SavesPretrained | None, directory: str | os.PathLike
) -> Path:
    """Saves a model so that it loads and works where csan_hf is not installed.

    Writes weights, config, generation config and tokenizers; the family's code and a complete `auto_map`; and, unless
    the model is a classifier, the translation pipeline. Everything is written elsewhere first and then
    moved, so that a failure to write leaves what was there before. Other files in `directory` (logs, a card) stay.

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
        directory: Where to save; made if need be.

    Returns:
        `directory` as a `Path`.

    Raises:
        ValueError: The model's code is not in files of its own, or a model with separate vocabularies came with one
            tokenizer.
        OSError: The files cannot be written.
    """
    directory = Path(directory)
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"{directory} is a file; a checkpoint needs a directory.")
    with _staging(directory) as staging:
        _write(model, tokenizers, staging)
        _move(staging, directory)
    return directory


def auto_map(model: PreTrainedModel) -> dict[str, str]:
    """Returns what `config.auto_map` must hold for a model's family, from the classes registered for its config.

    Args:
        model: Any model of the family.

    Raises:
        ValueError: The family is transformers' own or was defined in a script: there is no code to take along.
    """
    classes = _family(model)
    for name, class_ in classes.items():
        if class_.__module__ == "__main__" or class_.__module__.startswith("transformers."):
            raise ValueError(f"{name} is {class_.__module__}.{class_.__name__}, whose code cannot be saved along.")
    return {name: f"{class_.__module__.split('.')[-1]}.{class_.__name__}" for name, class_ in classes.items()}


def _family(model: PreTrainedModel) -> dict[str, type]:
    """The config's class and the model classes registered for it, by the names of their auto classes."""
    config_class = type(model.config)
    found: dict[str, Any] = {"AutoConfig": config_class}
    for auto_class in _AUTO_CLASSES:
        if config_class in auto_class._model_mapping:
            found[auto_class.__name__] = auto_class._model_mapping[config_class]
    return found


def _translates(model: PreTrainedModel) -> bool:
    """Whether a model has a decoder; a base model counts, as the rest of it may be tied."""
    family = _family(model)
    return any(isinstance(model, family[name.__name__]) for name in _TRANSLATING if name.__name__ in family)


def _write(model: PreTrainedModel, tokenizers: SavesPretrained | None, directory: Path) -> None:
    """Writes the whole checkpoint into an empty `directory`."""
    auto_map(model)  # refuses foreign models before anything is written
    with _unmarked(model.config):
        model.save_pretrained(directory)
    apply_umask(directory.glob("*.safetensors"))
    write_code(model, directory)
    if tokenizers is not None:
        _write_tokenizers(model, tokenizers, directory)


@contextmanager
def _unmarked(config: PreTrainedConfig) -> Iterator[None]:
    """Hides what a checkpoint has written into a config, so that saving takes nothing of that checkpoint along."""
    hidden: dict[str, Any] = {
        name: vars(config).pop(name) for name in ("auto_map", "custom_pipelines") if name in vars(config)
    }
    try:
        yield
    finally:
        vars(config).update(hidden)


def write_code(model: PreTrainedModel, directory: Path) -> None:
    """Writes a family's code and the complete `config.json` into a directory that has a model's weights.

    Each file is replaced whole, and only if it differs: an upload of the directory may be under way.

    Args:
        model: A model of csan_hf, unwrapped.
        directory: The directory.

    Raises:
        ValueError: See `auto_map`.
    """
    entries = auto_map(model)
    # The live config stays as it is: later saves of the model by other means would not bring the code along
    config = copy.deepcopy(model.config)
    config.auto_map = entries
    if _translates(model):
        config.custom_pipelines = copy.deepcopy(CUSTOM_PIPELINES)
    elif hasattr(config, "custom_pipelines"):  # of the translation checkpoint that the classifier was made of
        del config.custom_pipelines
    with _staging(directory) as staging:
        staging.mkdir()
        if _translates(model):
            shutil.copy(translation.__file__, staging)
        # Not the config's own method: that one completes a checkpoint from the one that was loaded
        PreTrainedConfig.save_pretrained(config, staging)
        for code in (model, config):
            custom_object_save(code, staging)
        for path in sorted(staging.iterdir()):
            target = directory / path.name
            if not (target.is_file() and filecmp.cmp(path, target, shallow=False)):
                path.replace(target)


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
    # One tokenizer for two embeddings: said outright, lest a loader takes the second one for forgotten
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
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name in sorted(new, key=lambda name: name == "config.json"):
        os.replace(staging / name, directory / name)
