# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The files that a shared checkpoint has beside config and weights, kept when what was loaded is saved again."""

import os
import shutil
import stat
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers.configuration_utils import PreTrainedConfig
from transformers.dynamic_module_utils import get_relative_import_files
from transformers.utils import cached_file, logging

logger = logging.get_logger(__name__)

_TARGET_TOKENIZER = "target_tokenizer"


def keep_checkpoint_files(config: PreTrainedConfig, directory: str | os.PathLike) -> None:
    """Writes the files that a config names, and the tokenizer of the target language, beside `config.json`.

    transformers copies a model's code where its class came out of a checkpoint, but never a pipeline's nor a second
    tokenizer; where csan_hf is installed it copies none. The `config.json` of the copy would then name files that are
    not there. Code comes from where the config's class stands, the rest from the checkpoint that was loaded. A config
    that names no code leaves the directory as it is.

    Args:
        config: The config, as loaded.
        directory: Where it is saved.
    """
    if not getattr(config, "auto_map", None):
        return
    directory = Path(directory)
    pipelines = getattr(config, "custom_pipelines", None) or {}
    lost = [
        name
        for name in sorted(_files_of([*config.auto_map.values(), *(entry["impl"] for entry in pipelines.values())]))
        if not _copy_code(config, name, directory) and not (directory / name).is_file()
        if not _copy_from_origin(config, name, directory)
    ]
    separate = getattr(config, "share_encoder_decoder_embeddings", True) is False
    if "translation" in pipelines and separate and not (directory / _TARGET_TOKENIZER).is_dir():
        lost += [] if _save_target_tokenizer(config, directory) else [f"{_TARGET_TOKENIZER}/"]
    if lost:
        logger.warning(
            f"{directory} lacks {', '.join(lost)}, which config.json needs and {_origin(config) or 'no checkpoint'} "
            "could give: it will not load without csan_hf. `csan_hf.hub.save_self_contained` writes it."
        )


def _files_of(references: Iterable[str]) -> set[str]:
    """The files in which classes such as `modeling_csan.CsanModel` are; those of other repositories stay there."""
    return {f"{reference.split('.')[0]}.py" for reference in references if "--" not in reference}


def _copy_code(config: PreTrainedConfig, name: str, directory: Path) -> bool:
    """Copies a file beside that of the config's class, and what it imports."""
    file = Path(str(sys.modules[type(config).__module__].__file__)).with_name(name)
    if not file.is_file():
        return False
    for source in [str(file), *get_relative_import_files(str(file))]:
        target = directory / Path(source).name
        if not (target.exists() and target.samefile(source)):
            shutil.copyfile(source, target)
    return True


def _origin(config: PreTrainedConfig) -> str:
    return str(getattr(config, "_name_or_path", None) or "")


def _origin_arguments(config: PreTrainedConfig) -> dict[str, Any]:
    revision = getattr(config, "_commit_hash", None)
    return {} if revision is None else {"revision": revision}


def _copy_from_origin(config: PreTrainedConfig, name: str, directory: Path) -> bool:
    """Copies a file of the checkpoint that the config came from, a directory or a repository on the Hub."""
    if not _origin(config):
        return False
    try:
        file = cached_file(_origin(config), name, **_origin_arguments(config))
    except OSError:  # the checkpoint is gone, incomplete or out of reach
        return False
    shutil.copyfile(str(file), directory / name)
    return True


def _save_target_tokenizer(config: PreTrainedConfig, directory: Path) -> bool:
    """Saves the second tokenizer of the checkpoint that the config came from."""
    from transformers import AutoTokenizer  # the model classes do without tokenizers

    if not _origin(config):
        return False
    try:
        where = {"subfolder": _TARGET_TOKENIZER, **_origin_arguments(config)}
        tokenizer = AutoTokenizer.from_pretrained(_origin(config), **where)
    except (OSError, ValueError):
        return False
    tokenizer.save_pretrained(directory / _TARGET_TOKENIZER)
    return True


def apply_umask(directory: str | os.PathLike) -> None:
    """Gives files of weights the permissions of the files beside them; safetensors writes its own for the owner alone.

    Args:
        directory: Of a checkpoint, with the `config.json` that was written by the same save.
    """
    config = Path(directory, "config.json")
    for path in Path(directory).glob("*.safetensors") if config.is_file() else ():
        path.chmod(stat.S_IMODE(config.stat().st_mode))
