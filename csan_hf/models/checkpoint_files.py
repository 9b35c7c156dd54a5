# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What a checkpoint has beside config and weights: its code, the translation pipeline, the target's tokenizer.

They are written whenever a configuration is saved, which every save of a model does. So every checkpoint loads where
csan_hf is not installed, whichever program saved it.
"""

import contextlib
import copy
import filecmp
import os
import shutil
import stat
import sys
import tempfile
import threading
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
    """Write what a checkpoint needs beside `config.json` and weights, and return the config that names it.

    It needs the family's code, from the folder of the config's class; the translation pipeline, unless the model is a
    classifier; and the target's tokenizer, if the checkpoint that the config came from has one. A file is replaced
    whole, and only if it differs, as the directory may be being uploaded. A warning names what is missing, and any
    file of the user's own that had to be renamed to make room.

    Args:
        config: The config of the model that is being saved; it is not changed.
        directory: Where it is saved; created if missing.

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
            f"{directory} lacks {', '.join(lost)}, which could not be copied from the checkpoint that was loaded: it "
            "will not load completely without csan_hf. Where csan_hf is installed, "
            f"`csan_hf.hub.save_self_contained(model, tokenizers, {str(directory)!r})` adds it."
        )
    if translates and config.architectures and not getattr(config, "share_encoder_decoder_embeddings", True):
        _keep_target_tokenizer(config, directory)
    return named


def auto_map(config: PreTrainedConfig) -> dict[str, str]:
    """Return the `auto_map` of a checkpoint: the classes that the Auto classes know for a config.

    Args:
        config: A config of the family.

    Returns:
        `{"AutoConfig": "configuration_csan.CsanConfig", ...}`; empty if there is no code to copy, because the
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
    """Write a file of code and what it imports: from beside the config's class, or the checkpoint that was loaded."""
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
    new = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        shutil.copyfile(source, new)
        set_aside_if_foreign(target, source)
        os.replace(new, target)
    finally:
        new.unlink(missing_ok=True)


def is_foreign(path: Path, code: Path) -> bool:
    """Whether `path` is a file of the user's own, not a version of the checkpoint's file `code` of the same name.

    All versions of a file of code begin with the same line, that of the licence.
    """
    try:
        with path.open("rb") as own, code.open("rb") as other:
            return own.readline(1000) != other.readline(1000)
    except FileNotFoundError:
        return False


def set_aside_if_foreign(path: Path, code: Path) -> None:
    """Rename a file of the user's own that a file of code is about to replace, with a warning that names it.

    Args:
        path: The file, which need not exist.
        code: The file of code that will take its place.
    """
    if not path.is_file() or not is_foreign(path, code):
        return
    names = (path.with_name(f"{path.name}.orig{number or ''}") for number in range(10**6))
    kept = next(name for name in names if not os.path.lexists(name))
    with contextlib.suppress(FileNotFoundError):  # another thread was faster
        path.rename(kept)
        logger.warning(
            f"{path} is not the checkpoint's file of that name: it was renamed to {kept.name}, so as not to be "
            "overwritten. Save a checkpoint in a directory of its own."
        )


def keep_foreign_files(kind: type, directory: str | os.PathLike) -> None:
    """Rename the user's own files that transformers would overwrite with the code of a class from a checkpoint.

    Args:
        kind: The class, loaded from a checkpoint.
        directory: Where it is about to be saved; need not exist.
    """
    file = str(sys.modules[kind.__module__].__file__)
    for source in map(Path, [file, *get_relative_import_files(file)]):
        set_aside_if_foreign(Path(directory, source.name), source)


def _origin(config: PreTrainedConfig) -> str:
    """Folder or name on the Hub that a config was loaded from; "" if it is not known or gone.

    A name without a commit was that of a folder: on the Hub the same name may be a stranger's, whose files must not be
    taken.
    """
    name = str(getattr(config, "_name_or_path", None) or "")
    return name if _revision(config) or os.path.isdir(name) else ""


def _revision(config: PreTrainedConfig) -> dict[str, Any]:
    revision = getattr(config, "_commit_hash", None)
    return {} if revision is None else {"revision": revision}


def _keep_target_tokenizer(config: PreTrainedConfig, directory: Path) -> None:
    """Save the second tokenizer of the checkpoint that the config came from, unless there is one already."""
    from transformers import AutoTokenizer  # the model classes do without tokenizers

    if (directory / _TARGET_TOKENIZER).is_dir():
        return
    if _origin(config):
        try:
            where = {"subfolder": _TARGET_TOKENIZER, **_revision(config)}
            # False, not None: a save must not stop to ask whether the tokenizer's code may run
            tokenizer = AutoTokenizer.from_pretrained(_origin(config), trust_remote_code=False, **where)
            with tempfile.TemporaryDirectory(prefix=f".{_TARGET_TOKENIZER}.", dir=directory) as folder:
                tokenizer.save_pretrained(Path(folder, "new"))
                with contextlib.suppress(OSError):  # another thread was faster
                    Path(folder, "new").rename(directory / _TARGET_TOKENIZER)
            if (directory / _TARGET_TOKENIZER).is_dir():
                return
        except (OSError, ValueError):
            pass
    logger.warning(
        f"{directory} lacks {_TARGET_TOKENIZER}/: the target has a vocabulary of its own, and a model does not know "
        f"its tokenizers. Unless you save it yourself later, `target_tokenizer.save_pretrained("
        f"{str(directory / _TARGET_TOKENIZER)!r})` adds it."
    )


def weight_files(directory: str | os.PathLike) -> dict[Path, tuple[int, int]]:
    """Return inode and modification time (ns) of each file of weights in a directory, which need not exist."""
    found = {}
    for path in Path(directory).glob("*.safetensors"):
        with contextlib.suppress(FileNotFoundError):
            found[path] = (path.stat().st_ino, path.stat().st_mtime_ns)
    return found


def apply_umask(directory: str | os.PathLike, before: dict[Path, tuple[int, int]]) -> None:
    """Give new files of weights the permissions of the files beside them; safetensors lets only the owner read them.

    Args:
        directory: A checkpoint's, with the `config.json` that was written by the same save.
        before: What `weight_files` returned before the save; files unchanged since then keep their permissions.
    """
    config = Path(directory, "config.json")
    if not config.is_file():
        return
    for path, state in weight_files(directory).items():
        if before.get(path) != state:
            with contextlib.suppress(FileNotFoundError, PermissionError):  # of another process that saves there
                path.chmod(stat.S_IMODE(config.stat().st_mode))
