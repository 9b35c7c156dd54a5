# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Checkpoints written as a whole: model, tokenizers, and the code to load them where csan_hf is not
installed.
"""

import os
import shutil
import tempfile
from pathlib import Path

from transformers import PreTrainedModel

from ..data.tokenization import Tokenizers
from ..models.seq2seq_model import TARGET_TOKENIZER_SUBFOLDER

# What an earlier save may have left in a directory and the new one need not overwrite
_STALE = (
    "model*.safetensors",
    "model.safetensors.index.json",
    "pytorch_model*.bin*",
    "generation_config.json",
    "modeling_csan_classification.py",
)


def save_self_contained(
    model: PreTrainedModel, tokenizers: Tokenizers | None, directory: str | os.PathLike
) -> Path:
    """Saves a model and its tokenizers, so that it loads and works where csan_hf is not installed.

    Writes what `model.save_pretrained` writes (weights, configs and the family's code) and the
    tokenizers. All files are written to a temporary folder and then moved: if writing fails,
    `directory` keeps what it held. Other files in it (logs, a card) stay. Returns `directory` as a
    `Path`.

    ```python
    AutoModelForSeq2SeqLM.from_pretrained(directory, trust_remote_code=True)
    pipeline("translation", model=directory, trust_remote_code=True)
    pipeline("text-classification", model=directory, trust_remote_code=True)  # of a classifier
    ```

    Args:
        model: A model of csan_hf, unwrapped.
        tokenizers: The tokenizer, or a `TokenizerPair`; None saves none. With separate vocabularies
            the target tokenizer goes to the folder `target_tokenizer`. Of a classifier the source's
            alone is saved.
        directory: Where to save; created if missing.

    Raises:
        ValueError: The model's class is not registered for an Auto class, so that its code would
            not be saved, or a model with separate vocabularies came with one tokenizer.
        OSError: The files cannot be written.
    """
    directory = Path(directory)
    if getattr(model, "_auto_class", None) is None and not type(model).__module__.startswith(
        "transformers."
    ):
        raise ValueError(
            f"The code of {type(model).__module__}.{type(model).__name__} cannot be saved with the "
            "model: it is not registered for an Auto class. Use `model.save_pretrained`, or for a "
            "class of your own `register_for_auto_class` first."
        )
    directory.parent.mkdir(parents=True, exist_ok=True)
    # Within a directory that exists, which may be a volume or a link to another file system
    folder = directory if directory.exists() else directory.parent
    with tempfile.TemporaryDirectory(prefix=f".{directory.name}.", dir=folder) as temporary:
        new = Path(temporary, "checkpoint")
        new.mkdir()
        # First: a model saved without its target's tokenizer looks for one, and warns
        if tokenizers is not None:
            _save_tokenizers(model, tokenizers, new)
        model.save_pretrained(new)
        if not directory.exists():
            new.rename(directory)
            return directory
        (directory / "config.json").unlink(missing_ok=True)
        for pattern in _STALE:
            for path in directory.glob(pattern):
                path.unlink()
        if tokenizers is not None and (directory / TARGET_TOKENIZER_SUBFOLDER).exists():
            shutil.rmtree(directory / TARGET_TOKENIZER_SUBFOLDER)
        # The config last: without it nothing loads
        for path in sorted(new.iterdir(), key=lambda path: path.name == "config.json"):
            path.replace(directory / path.name)
    return directory


def _save_tokenizers(model: PreTrainedModel, tokenizers: Tokenizers, directory: Path) -> None:
    if not getattr(model, "translates", True):
        getattr(tokenizers, "source", tokenizers).save_pretrained(directory)
        return
    tokenizers.save_pretrained(directory)
    folder = directory / TARGET_TOKENIZER_SUBFOLDER
    if getattr(model.config, "share_encoder_decoder_embeddings", True) or folder.is_dir():
        return
    sizes = model.config.vocab_size, model.config.decoder_vocab_size
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"The model has separate vocabularies ({sizes[0]} source and {sizes[1]} target "
            "entries) but came with one tokenizer: pass a TokenizerPair."
        )
    # One tokenizer for two embeddings: saved as the target's, too, or a loader would report that as
    # missing
    getattr(tokenizers, "target", tokenizers).save_pretrained(folder)
