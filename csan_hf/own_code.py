# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Code from outside the package, `csan-hf --import`, and the files of locality methods in
checkpoints.
"""

import importlib.util
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers.dynamic_module_utils import get_relative_import_files
from transformers.utils import logging

from csan_hf_runtime import IMPORTS

from . import models
from .models.locality import LocalityMethod, method_classes

logger = logging.get_logger(__name__)

_PACKAGE = Path(models.__file__).parent


def import_modules(names: Iterable[str]) -> None:
    """Imports modules, see `import_module`, and notes them in `IMPORTS` for the processes that a
    command starts.
    """
    os.environ[IMPORTS] = ",".join(dict.fromkeys(map(import_module, filter(None, names))))


def import_module(name: str) -> str:
    """Imports a module of one's own, so that what it registers is known, and returns its absolute
    path or name.

    Args:
        name: Name of a module, or path of a file, with or without `.py`. A file is imported as
            `csan_hf.models.NAME`: one that was saved with a checkpoint, whose imports are relative,
            can be imported from there.

    Raises:
        ValueError: The name is none of Python's, or a file of csan_hf or one imported before has
            it; or the file raises an error.
        ImportError: There is no such module.
    """
    file = Path(name if name.endswith(".py") else f"{name}.py").resolve()
    if not file.is_file():
        if name.endswith(".py") or not all(part.isidentifier() for part in name.split(".")):
            raise ImportError(f"There is neither a file {file} nor a module {name}.")
        importlib.import_module(name)
        return name
    full_name = f"{models.__name__}.{file.stem}"
    known = importlib.util.find_spec(full_name)
    if not file.stem.isidentifier() or (known is not None and known.origin != str(file)):
        raise ValueError(
            f"{file}: choose another name, of letters and digits, which no file of csan_hf and "
            f"none imported before has ({IMPORTS} imports first)."
        )
    if known is None:
        spec: Any = importlib.util.spec_from_file_location(full_name, file)
        sys.modules[full_name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(sys.modules[full_name])
        except Exception as error:
            del sys.modules[full_name]
            raise ValueError(f"{file}: {type(error).__name__}: {error}") from error
    return str(file)


def save_methods(config: models.CsanConfig, directory: str | os.PathLike) -> None:
    """Saves the files of a config's locality methods beside its code, which registers them.

    In those from outside the package `from csan_hf.models.FILE import NAME` becomes `from .FILE
    import NAME`, which works without csan_hf."""
    code = Path(directory, "configuration_csan.py")
    if not code.is_file():
        return
    used: set[type] = set()
    for locality in config.localities():
        used.update(map(type, locality.methods))
    for method in filter(used.__contains__, method_classes()):
        file = Path(getattr(sys.modules[method.__module__], "__file__", None) or "")
        is_of_package = file.parent == _PACKAGE
        if not is_of_package and (
            method.__module__ == "__main__" or not file.is_file() or (_PACKAGE / file.name).exists()
        ):
            what = "define it in a file, of a name that no file of csan_hf has, and import that"
            logger.warning_once(f"{method.__name__} is not saved with the model: {what}.")
            continue
        for path in [file, *_imported_by(file)]:
            text = re.sub(
                r"^(\s*from) csan_hf\.models\.",
                r"\1 .",
                path.read_text(encoding="utf-8"),
                flags=re.MULTILINE,
            )
            if path.name != code.name:
                code.with_name(path.name).write_text(text, encoding="utf-8")
        with open(code, "a", encoding="utf-8") as end:
            end.write(_registration(file.stem, method))


def _imported_by(file: Path) -> list[Path]:
    """The files of the package that a method's file imports from, and those that these do."""
    files = []
    code = file.read_text(encoding="utf-8")
    for name in re.findall(r"(?m)^\s*from (?:csan_hf\.models)?\.(\w+) import", code):
        sibling = _PACKAGE / f"{name}.py"
        if sibling.is_file():
            files += [sibling, *map(Path, get_relative_import_files(sibling))]
    return list(dict.fromkeys(files))


def without_methods_of_package(code: str) -> str:
    """The code of a saved configuration without what registers the package's own methods."""
    for method in models.LOCALITY_METHODS:
        code = code.replace(_registration(method.__module__.rpartition(".")[2], method), "")
    return code


def _registration(module: str, method: type[LocalityMethod]) -> str:
    return (
        f"\nfrom .{module} import {method.__name__}  # noqa: E402\n"
        "from .locality import register_locality  # noqa: E402\n"
        f"register_locality({method.__name__})\n"
    )
