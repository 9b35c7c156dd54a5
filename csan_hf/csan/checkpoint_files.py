# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What a checkpoint has beside config and weights: its code, the translation pipeline, the target's tokenizer.

A save of a configuration, which a save of a model comes by, writes them: so every checkpoint loads where csan_hf is
not installed, whoever saved it.
"""

import copy
import filecmp
import os
import shutil
import stat
import sys
from pathlib import Path
from typing import Any, TypeVar

from transformers.configuration_utils import PreTrainedConfig
from transformers.dynamic_module_utils import get_relative_import_files
from transformers.utils import TRANSFORMERS_DYNAMIC_MODULE_NAME, cached_file, logging

logger = logging.get_logger(__name__)

Config = TypeVar("Config", bound=PreTrainedConfig)

_TARGET_TOKENIZER = "target_tokenizer"
# The auto classes under which a checkpoint offers its models; the first two translate
_AUTO_CLASSES = (
    "AutoModel",
    "AutoModelForSeq2SeqLM",
    "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
)
_PIPELINE = "translation.TranslationPipeline"


def complete_checkpoint(config: Config, directory: str | os.PathLike) -> Config:
    """Writes what a checkpoint needs beside `config.json` and weights, and returns the config that names it.

    These are the code of the family, from where the config's class stands; unless the model is a classifier, the
    translation pipeline; and the target's tokenizer, if the checkpoint that the config came from has one. A file is
    replaced whole, and only if it differs: an upload of the directory may be under way. What cannot be had is said in
    a warning.

    Args:
        config: The config of the model that is being saved, which stays as it is.
        directory: Where it is saved; made if need be.

    Returns:
        A copy of the config with `auto_map` and `custom_pipelines`, to be written.
    """
    directory = Path(directory)
    named = copy.copy(config)
    vars(named).pop("custom_pipelines", None)  # of the translation checkpoint that a classifier was made of
    entries = auto_map(config)
    if not entries:
        logger.warning(
            f"{directory} will load only where {type(config).__module__} can be imported: {type(config).__name__} is "
            "not registered with the Auto classes, or defined where its code cannot be copied from."
        )
        return named
    if directory.exists() and not directory.is_dir():
        return named  # which transformers refuses
    directory.mkdir(parents=True, exist_ok=True)
    vars(named)["auto_map"] = entries
    files = {reference.split(".")[0] for reference in entries.values()}
    if translates := _translates(config, entries):
        pipeline = {"impl": _PIPELINE, "pt": ["AutoModelForSeq2SeqLM"], "type": "text"}
        vars(named)["custom_pipelines"] = {"translation": pipeline}
        files.add(_PIPELINE.split(".")[0])
    lost = [f"{name}.py" for name in sorted(files) if not _write_code(config, f"{name}.py", directory)]
    if lost:
        logger.warning(
            f"{directory} lacks {', '.join(lost)}, which {_origin(config) or 'no checkpoint'} could give: not all "
            "of it will load without csan_hf. Where that is installed, "
            f"`csan_hf.hub.save_self_contained(model, tokenizers, {str(directory)!r})` adds it."
        )
    if translates and config.architectures and not getattr(config, "share_encoder_decoder_embeddings", True):
        _keep_target_tokenizer(config, directory)
    return named


def auto_map(config: PreTrainedConfig) -> dict[str, str]:
    """Returns what `auto_map` of a checkpoint must hold: the classes that the Auto classes know for a config.

    Args:
        config: A config of the family.

    Returns:
        `{"AutoConfig": "configuration_csan.CsanConfig", ...}`; empty if there is no code to take along, because the
        family is transformers' own, was defined in a script, or is not registered.
    """
    from transformers.models.auto import modeling_auto  # the config alone does without

    kind = type(config)
    found: dict[str, Any] = {}
    for name in _AUTO_CLASSES:
        mapping: Any = getattr(modeling_auto, name)._model_mapping
        if kind in mapping:
            found[name] = mapping[kind]
    known = {name: f"{class_.__module__.split('.')[-1]}.{class_.__name__}" for name, class_ in found.items()}
    if kind.__module__.startswith(f"{TRANSFORMERS_DYNAMIC_MODULE_NAME}."):  # which is registered as far as it was used
        loaded = getattr(config, "auto_map", None) or {}
        known = {**{name: str(entry).split("--")[-1] for name, entry in loaded.items()}, **known}
    elif any(class_.__module__ == "__main__" for class_ in found.values()):
        return {}
    if not known or kind.__module__ == "__main__" or kind.__module__.startswith("transformers."):
        return {}
    return {"AutoConfig": f"{kind.__module__.split('.')[-1]}.{kind.__name__}", **known}


def _translates(config: PreTrainedConfig, entries: dict[str, str]) -> bool:
    """Whether the model that is being saved has a decoder; a base model counts, as the rest of it may be tied."""
    heads = {reference.split(".")[-1] for name, reference in entries.items() if name in _AUTO_CLASSES[2:]}
    return heads.isdisjoint(config.architectures or ())


def _write_code(config: PreTrainedConfig, name: str, directory: Path) -> bool:
    """Writes a file of code and what it imports: from beside the config's class, or the checkpoint that was loaded."""
    folder = Path(str(sys.modules[type(config).__module__].__file__)).parent
    # In csan_hf the pipeline, which all families share, stands in a folder of its own
    for file in (folder / name, folder.parent / "pipelines" / name):
        if file.is_file():
            for source in [str(file), *get_relative_import_files(str(file))]:
                _replace(Path(source), directory / Path(source).name)
            return True
    if (directory / name).is_file():  # transformers has copied it
        return True
    if not _origin(config):
        return False
    try:
        _replace(Path(str(cached_file(_origin(config), name, **_revision(config)))), directory / name)
    except OSError:  # the checkpoint is gone, incomplete or out of reach
        return False
    return True


def _replace(source: Path, target: Path) -> None:
    if target.is_file() and filecmp.cmp(source, target, shallow=False):
        return
    new = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        shutil.copyfile(source, new)
        os.replace(new, target)
    finally:
        new.unlink(missing_ok=True)


def _origin(config: PreTrainedConfig) -> str:
    return str(getattr(config, "_name_or_path", None) or "")


def _revision(config: PreTrainedConfig) -> dict[str, Any]:
    revision = getattr(config, "_commit_hash", None)
    return {} if revision is None else {"revision": revision}


def _keep_target_tokenizer(config: PreTrainedConfig, directory: Path) -> None:
    """Saves the second tokenizer of the checkpoint that the config came from, unless there is one already."""
    from transformers import AutoTokenizer  # the model classes do without tokenizers

    if (directory / _TARGET_TOKENIZER).is_dir():
        return
    if _origin(config):
        try:
            where = {"subfolder": _TARGET_TOKENIZER, **_revision(config)}
            tokenizer = AutoTokenizer.from_pretrained(_origin(config), **where)
            tokenizer.save_pretrained(directory / _TARGET_TOKENIZER)
            return
        except (OSError, ValueError):
            pass
    logger.warning(
        f"{directory} lacks {_TARGET_TOKENIZER}/: the target has a vocabulary of its own, and a model does not know "
        f"its tokenizers. `target_tokenizer.save_pretrained({str(directory / _TARGET_TOKENIZER)!r})` adds it, if "
        "nothing does so after this."
    )


def apply_umask(directory: str | os.PathLike) -> None:
    """Gives files of weights the permissions of the files beside them; safetensors writes its own for the owner alone.

    Args:
        directory: Of a checkpoint, with the `config.json` that was written by the same save.
    """
    config = Path(directory, "config.json")
    for path in Path(directory).glob("*.safetensors") if config.is_file() else ():
        path.chmod(stat.S_IMODE(config.stat().st_mode))
