# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Which files of a folder may be uploaded, and their content without local paths and credentials."""

from __future__ import annotations

import getpass
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path, PureWindowsPath
from typing import Any

import yaml
from transformers.dynamic_module_utils import get_relative_import_files

from ..credentials import find_credentials, holds_credential
from ..models.seq2seq_model import TARGET_TOKENIZER_SUBFOLDER
from ..text_files import check_file_name

_DESCRIPTIONS = ("config.json", "generation_config.json", "README.md", "LICENSE", "recipe.yaml", "results.json")
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "target_vocab.json", "merges.txt", "chat_template.jinja"),
    *("source.spm", "target.spm", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model"),
)
_HYPOTHESES = "hypotheses"
_PICTURE = re.compile(r"\]\(([^()\s]+\.(?:png|jpg|svg))\)")  # as Markdown shows one
_IN_FOLDER = re.compile(r"[^/\\]+|plots/[\w-]+\.(?:png|svg)")

# Keys of a recipe that say where, not what
_PLACES = ("output_dir", "resume", "overwrite", "dry_run")
_TEXT = (".json", ".yaml", ".md", ".txt", ".csv", ".py", ".jinja", ".svg", "LICENSE")
# In a sentence, a path ends where one of these stands
_END = r"\s\"'`,;)\]}>|"


class PrivateContentError(ValueError):
    """A file that must not be uploaded; the message names it and what to do, and shows nothing of its content."""


def public_files(directory: Path) -> dict[str, Path]:
    """Lists the files of a run or checkpoint that are uploaded, by their names in the repository.

    Weights, configs, the code that the config names and what it imports, tokenizers, the card and its pictures,
    recipe, results and the hypotheses that these score. Nothing else: no optimizer state, no pickle, no log.

    Raises:
        PrivateContentError: If one of them is a link to a file outside the folder.
        ValueError: If the config or the index names a file that cannot be one of the folder's.
    """
    names = [*_DESCRIPTIONS, *_TOKENIZER, *(f"{TARGET_TOKENIZER_SUBFOLDER}/{name}" for name in _TOKENIZER)]
    names += [*_names_of_weights(directory), *_names_of_code(directory), *_names_of_pictures(directory)]
    names += _names_of_hypotheses(directory)
    found = {name: directory / name for name in dict.fromkeys(names) if (directory / name).is_file()}
    for name, path in found.items():
        if not path.resolve().is_relative_to(directory.resolve()):
            raise PrivateContentError(
                f"{path} leads out of the folder, and what it leads to would be uploaded: put a copy in its place."
            )
        if "/" in name:
            check_file_name(path.name, str(path))
    return found


def _names_of_weights(directory: Path) -> Iterator[str]:
    yield _WEIGHTS
    if (directory / _INDEX).is_file():
        yield _INDEX
        yield from weight_files(directory / _INDEX)


def weight_files(index: Path) -> list[str]:
    """Returns the names of the files that an index of weights lists.

    Raises:
        ValueError: If it is no index, or names what is no file of its folder.
    """
    content = _read_json(index)
    listed = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(listed, dict) or not listed:
        raise ValueError(f"{index} is no index of weights: it has no weight_map.")
    names = {check_file_name(name, f"{index}: the file of weights") for name in listed.values()}
    if other := sorted(name for name in names if not name.endswith(".safetensors")):
        raise ValueError(f"{index} names {other[0]!r} as a file of weights: only *.safetensors are.")
    return sorted(names)


def _names_of_code(directory: Path) -> Iterator[str]:
    for name in sorted(set(code_files(_read_json(directory / "config.json")).values())):
        file = directory / name
        yield name
        if file.is_file():
            try:
                imported = get_relative_import_files(str(file))
            except FileNotFoundError:  # which the check of what loads tells
                continue
            yield from (Path(path).name for path in imported if Path(path).parent == file.parent)


def code_files(config: Any) -> dict[str, str]:
    """Returns the files of code that a config names, by the entry that names them.

    Raises:
        ValueError: If an entry is not of a form that transformers can load.
    """
    config = config if isinstance(config, dict) else {}
    named: dict[str, Any] = {}
    for field in ("auto_map", "custom_pipelines"):
        entries = config.get(field) or {}
        if not isinstance(entries, dict):
            raise ValueError(f"config.json: {field} must hold names and classes, got a {type(entries).__name__}.")
        for key, value in entries.items():
            named[f"{field}[{key!r}]"] = value.get("impl") if isinstance(value, dict) else value
    files = {}
    for where, reference in named.items():
        if not isinstance(reference, str) or "." not in reference:
            raise ValueError(f"config.json: {where} must be FILE.CLASS, got {str(reference)[:80]!r}.")
        files[where] = check_file_name(f"{reference.split('--')[-1].split('.')[0]}.py", f"config.json: {where}")
    return files


def _names_of_hypotheses(directory: Path) -> Iterator[str]:
    """Yields the files of the test sets that the results score: other text may lie beside them."""
    results = _read_json(directory / "results.json")
    scores = results.get("scores") if isinstance(results, dict) else None
    for name in sorted(scores) if isinstance(scores, dict) else ():
        yield f"{_HYPOTHESES}/{check_file_name(f'{name}.txt', 'results.json: the test set')}"


def _names_of_pictures(directory: Path) -> Iterator[str]:
    card = directory / "README.md"
    if card.is_file():
        shown = _PICTURE.findall(card.read_text(encoding="utf-8", errors="replace"))
        yield from (name for name in shown if _IN_FOLDER.fullmatch(name))


# ---- content


def public_content(directory: Path, name: str, path: Path, recipe: Path) -> bytes | None:
    """Returns the content that is uploaded instead of a file's own; None if the file is uploaded unchanged.

    Local paths are cut to their last part, and a recipe loses the keys that say only where it ran.

    Args:
        directory: The folder that is uploaded.
        name: The file's name in the repository.
        path: The file.
        recipe: The recipe of the run, whose paths are looked for in all files; need not exist.

    Raises:
        PrivateContentError: If the file holds a credential.
    """
    if not name.endswith(_TEXT):
        return None
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    value = _parse(name, text)
    if holds_credential(text) or any(True for _ in find_credentials(value)):
        raise PrivateContentError(f"{path} holds a credential: take it out there, and have it replaced by a new one.")
    if name.endswith((".py", "LICENSE")) or name.startswith(_HYPOTHESES):
        return None
    public = text
    if name == "recipe.yaml" and isinstance(value, dict):
        public = yaml.safe_dump(public_recipe(value), sort_keys=False, allow_unicode=True, width=100)
    public = without_local_paths(public, directory, recipe)
    return None if public == text else public.encode("utf-8", errors="surrogateescape")


def without_local_paths(text: str, directory: Path, recipe: Path) -> str:
    """Returns a text in which the known local paths of this machine and of a run's recipe are cut to their last part.

    Args:
        text: The text.
        directory: A folder whose path is not to be shown.
        recipe: The recipe of a run, whose paths are looked for; need not exist.
    """
    for pattern in _local_paths(directory, recipe):
        text = pattern.sub(lambda match: _last_part(match[0]), text)
    return text


def _parse(name: str, text: str) -> Any:
    try:
        if name == "recipe.yaml":
            return yaml.safe_load(text)
        return json.loads(text) if name.endswith(".json") and not name.endswith("tokenizer.json") else None
    except (ValueError, yaml.YAMLError, RecursionError):
        return None


def public_recipe(recipe: dict[str, Any]) -> dict[str, Any]:
    """Returns a recipe without the keys that say where it ran, its local paths cut to their last part."""
    kept = {key: value for key, value in recipe.items() if key not in _PLACES and value not in (None, {})}
    public: dict[str, Any] = _without_folders(kept)
    return public


def _without_folders(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_folders(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_without_folders(entry) for entry in value]
    return _last_part(value) if isinstance(value, str) and is_local_path(value) else value


def _last_part(path: str) -> str:
    """Returns the last part of a path; for a home folder, which has its user's name, a stand-in."""
    name = PureWindowsPath(path.rstrip("/\\")).name  # which splits at / and at \
    return "~" if name in (Path.home().name, f"~{_user()}", _user()) else name


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no entry in the list of users, as in some containers
        return Path.home().name


def is_local_path(text: str) -> bool:
    """Says whether a text is a path that has a meaning on one machine alone: absolute, from home, or leading up."""
    return (
        text.startswith(("~", "../", "..\\", "\\\\", "file:"))
        or os.path.isabs(text)
        or PureWindowsPath(text).drive != ""
    )


def _local_paths(directory: Path, recipe: Path) -> list[re.Pattern[str]]:
    """Returns patterns of the paths under the folders that this machine and the run's recipe are known to have."""
    roots = {Path.home(), Path.cwd(), directory.absolute(), directory.resolve(), Path(tempfile.gettempdir())}
    roots |= {Path(sys.prefix)} if sys.prefix != sys.base_prefix else set()  # a virtual environment
    texts = {str(root) for root in roots if len(root.parts) > 1}
    texts |= {str(root.resolve()) for root in roots if len(root.resolve().parts) > 1}
    texts |= set(_paths_in(_parse("recipe.yaml", _read_text(recipe))))
    texts |= {f"~{_user()}"}
    escaped = {json.dumps(text)[1:-1] for text in texts}  # as JSON writes what is not ASCII
    longest_first = sorted(texts | escaped, key=len, reverse=True)
    ends = rf"(?=$|[/\\{_END}.:])[^{_END}]*"
    return [re.compile(rf"(?:file://|(?<![\w/~])){re.escape(text)}{ends}") for text in longest_first]


def _paths_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from _paths_in(entry)
    elif isinstance(value, str) and is_local_path(value) and len(Path(value).parts) > 1:
        yield value.rstrip("/\\")


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
