# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Files of a folder that may be uploaded, and refusals of local paths and credentials in them."""

import getpass
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path, PureWindowsPath
from typing import Any

import yaml
from transformers.dynamic_module_utils import get_relative_import_files

from csan_hf_runtime.yaml_text import load_yaml

from .. import models
from ..credentials import find_credentials, holds_credential
from ..models.seq2seq_model import TARGET_TOKENIZER_SUBFOLDER
from ..own_code import without_methods_of_package

_TOKENIZER = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "target_vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "source.spm",
    "target.spm",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
]
_FILES = [
    "config.json",
    "generation_config.json",
    "README.md",
    "LICENSE",
    "recipe.yaml",
    "results.json",
    "model.safetensors",
    "model.safetensors.index.json",
]
_FILES += _TOKENIZER
_FILES += [f"{TARGET_TOKENIZER_SUBFOLDER}/{name}" for name in _TOKENIZER]
_PICTURE = re.compile(r"\]\(((?:plots/)?[\w.-]+\.(?:png|jpg|svg))\)")  # as Markdown shows one

# Keys of a recipe that say where, not what
_PLACES = ("output_dir", "resume", "overwrite", "dry_run")
_TEXT = (".json", ".yaml", ".md", ".txt", ".csv", ".py", ".jinja", ".svg", "LICENSE")
# In a sentence, a path ends where one of these stands
_END = r"\s\"'`,;)\]}>|"


class IncompleteCheckpointError(ValueError):
    """A folder that would not load, or has no valid card, where csan_hf is not installed."""


class PrivateContentError(IncompleteCheckpointError):
    """A file that must not be uploaded; the message names it and what to do, and shows nothing of
    its content.
    """


def public_files(directory: Path) -> dict[str, Path]:
    """Lists the files of a run or checkpoint that are uploaded, by their names in the repository.

    Weights, configs, the code that the config names and what it imports, tokenizers, the card and
    its pictures, recipe, results and the hypotheses that these score. Nothing else: no optimizer
    state, no pickle, no log.

    Raises:
        PrivateContentError: If one of them leads to a file outside the folder.
        FileNotFoundError: If the code imports a file that is missing.
    """
    names = [
        *_FILES,
        *sorted(path.name for path in directory.glob("model-*-of-*.safetensors")),
        *_code(directory),
    ]
    card = directory / "README.md"
    if card.is_file():
        names += _PICTURE.findall(card.read_text(encoding="utf-8", errors="replace"))
    names += [
        f"hypotheses/{name}.txt"
        for name in sorted(read_json(directory / "results.json").get("scores") or ())
    ]
    paths = {name: directory / name for name in names}
    paths = {name: path for name, path in paths.items() if path.is_file()}
    for path in paths.values():
        if not path.resolve().is_relative_to(directory.resolve()):
            raise PrivateContentError(
                f"{path} leads out of the folder, and what it leads to would be uploaded: put a "
                "copy in its place."
            )
    return paths


def _code(directory: Path) -> Iterator[str]:
    """Yields the files of code that the config names, and those that they import."""
    for module in _modules(directory):
        file = directory / f"{module.rpartition('--')[2]}.py"
        if file.parent == directory and file.is_file():
            yield file.name
            imported = map(Path, get_relative_import_files(str(file)))
            yield from (path.name for path in imported if path.parent == directory)


def _modules(directory: Path) -> list[str]:
    """The modules of the classes that the config names, as it writes them: `FILE`, `REPO--FILE`."""
    config = read_json(directory / "config.json")
    texts: list[str] = []
    _mapped([config.get("auto_map"), config.get("custom_pipelines")], texts.append)
    return sorted({text.rpartition(".")[0] for text in texts if "." in text})


def foreign_code(directory: Path) -> list[str]:
    """Names what of a checkpoint's code this version of csan_hf would not save: files, classes that
    a config takes from elsewhere, and all code of tokenizers.
    """
    own_files = {path.name: path for path in Path(models.__file__).parent.glob("*.py")}
    foreign = [module for module in _modules(directory) if f"{module}.py" not in own_files]
    for name, path in public_files(directory).items():
        if name.endswith("tokenizer_config.json") and "auto_map" in read_json(path):
            foreign.append(name)
        elif name.endswith(".py"):
            own_file = own_files.get(name)
            code = without_methods_of_package(path.read_text(encoding="utf-8", errors="replace"))
            if own_file is None or own_file.read_text(encoding="utf-8") != code:
                foreign.append(name)
    return foreign


def public_content(directory: Path, name: str, path: Path, recipe: Path) -> bytes | None:
    """Returns the content that is uploaded instead of a file's own; None if the file is uploaded
    unchanged.

    Only a recipe is changed: see `public_recipe`.

    Args:
        directory: The folder that is uploaded.
        name: The file's name in the repository.
        path: The file.
        recipe: The recipe of the run, whose paths are looked for in all files; need not exist.

    Raises:
        PrivateContentError: If the file holds a credential, or a path of this machine.
    """
    if not name.endswith(_TEXT):
        return None
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    value = _parse(name, text)
    if holds_credential(text) or list(find_credentials(value)):
        raise PrivateContentError(
            f"{path} holds a credential: take it out there, and have it replaced by a new one."
        )
    if name.endswith((".py", "LICENSE")) or name.startswith("hypotheses/"):
        return None
    if name != "recipe.yaml" or not isinstance(value, dict):
        _check_paths(text, path, directory, recipe)
        return None
    public = yaml.safe_dump(public_recipe(value), sort_keys=False, allow_unicode=True, width=100)
    _check_paths(public, path, directory, recipe)
    return public.encode("utf-8", errors="surrogateescape")


def _check_paths(text: str, path: Path, directory: Path, recipe: Path) -> None:
    """Raises `PrivateContentError` if a text names a path that this machine is known to have, one
    in `directory`, or one of the run's `recipe`.
    """
    roots = {Path.home(), Path.cwd(), directory.absolute(), Path(tempfile.gettempdir())}
    roots |= {root.resolve() for root in roots}
    paths = {f"~{_user()}", *(str(root) for root in roots if len(root.parts) > 1)}
    of_recipe: list[str] = []
    if recipe.is_file():
        content = _parse("recipe.yaml", recipe.read_text(encoding="utf-8", errors="replace"))
        _mapped(content, of_recipe.append)
    for place in of_recipe:
        if is_local_path(place) and len(Path(place).parts) > 1:
            paths.add(place.rstrip("/\\"))
    paths |= {json.dumps(place)[1:-1] for place in paths}  # as JSON writes what is not ASCII
    alternatives = "|".join(map(re.escape, paths))
    private = re.search(rf"(?<![\w/~])(?:file://)?(?:{alternatives})(?=$|[/\\{_END}.:])", text)
    if private is not None:
        line = text.count("\n", 0, private.start()) + 1
        raise PrivateContentError(
            f"{path}, line {line} of what would be uploaded: a path of this machine. Take it out "
            "there, or from what the file was made of."
        )


def _parse(name: str, text: str) -> Any:
    try:
        if name == "recipe.yaml":
            return load_yaml(text)
        if name.endswith(".py"):
            return dict(re.findall(r"""^\s*(\w+)\s*=\s*["'](.+)["']""", text, flags=re.MULTILINE))
        if name.endswith(".json") and not name.endswith("tokenizer.json"):
            return json.loads(text)
        return None
    except ValueError:
        return None


def public_recipe(recipe: dict[str, Any]) -> dict[str, Any]:
    """Returns a recipe without the keys that say where it ran, its local paths cut to their last
    part.
    """
    public = {
        key: value
        for key, value in recipe.items()
        if key not in _PLACES and value not in (None, {})
    }
    shown: dict[str, Any] = _mapped(
        public, lambda text: _last_part(text) if is_local_path(text) else text
    )
    if isinstance(data := shown.get("data"), dict):  # a file of another program may be otherwise
        data.pop("cache_dir", None)
    return shown


def _mapped(value: object, function: Callable[[str], Any]) -> Any:
    """Returns nested mappings and lists with a function of each text and key in its place."""
    if isinstance(value, dict):
        return {_mapped(key, function): _mapped(entry, function) for key, entry in value.items()}
    if isinstance(value, list):
        return [_mapped(entry, function) for entry in value]
    return function(value) if isinstance(value, str) else value


def _last_part(path: str) -> str:
    """Returns the last part of a path; for a home folder, which has its user's name, "~"."""
    name = PureWindowsPath(path.rstrip("/\\")).name  # which splits at / and at \
    return "~" if name in (Path.home().name, f"~{_user()}", _user()) else name


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no entry in the list of users, as in some containers
        return Path.home().name


def is_local_path(text: str) -> bool:
    """Says whether a text is a path that has a meaning on one machine alone: absolute, from home,
    or leading up.
    """
    return (
        text.startswith(("~", "../", "..\\", "\\\\", "file:"))
        or os.path.isabs(text)
        or PureWindowsPath(text).drive != ""
    )


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object that a JSON file holds; an empty one where there is none."""
    if not path.is_file():
        return {}
    content = _parse(path.name, path.read_text(encoding="utf-8", errors="replace"))
    return content if isinstance(content, dict) else {}
