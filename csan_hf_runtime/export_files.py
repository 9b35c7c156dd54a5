# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Which files of an export belong to its graphs: all but those that may be edited."""

import hashlib
import json
from pathlib import Path

from .text_files import check_file_name

FILES = "files"
"""The key of a graph's metadata under which lie the digests of the files beside it."""

TARGET_FOLDER = "target_tokenizer"
_TOKENIZER = "tokenizer.json"
_EDITABLE = ("generation_config.json", "tokenizer_config.json")


def digests_of_files(directory: Path) -> str:
    """Returns the names and digests of the files of a new export, as JSON for the metadata."""
    files = [path for path in directory.rglob("*") if path.is_file() and path.suffix != ".onnx"]
    digests = {
        path.relative_to(directory).as_posix(): _digest(path)
        for path in sorted(files)
        if path.name not in _EDITABLE
    }
    return json.dumps(digests)


def check_files(directory: Path, digests: str | None) -> None:
    """Checks that the files beside graphs are those of their export.

    Args:
        directory: The folder.
        digests: What `digests_of_files` gave; None, of an export by an earlier version: nothing is
            checked.

    Raises:
        OSError: A file is missing, or another, or a tokenizer was added; or the digests are none of
            files in the folder.
    """
    try:
        files = json.loads(digests or "{}")
        if not isinstance(files, dict):
            raise ValueError(f"an object is expected, got {digests!r:.80}")
        for name in files:
            for part in name.split("/"):
                check_file_name(part, "the file")
    except (ValueError, RecursionError) as error:
        raise OSError(
            f"The graphs in {directory} do not say which files are theirs ({error}): export the "
            "model again."
        ) from error
    for name, digest in files.items():
        path = directory / name
        if not path.is_file() or _digest(path) != digest:
            raise OSError(
                f"{path} is missing, or not the one that the graphs were exported with: copy "
                "exports as whole folders, or export the model again."
            )
    added = Path(TARGET_FOLDER, _TOKENIZER)
    if _TOKENIZER in files and added.as_posix() not in files and (directory / added).exists():
        raise OSError(
            f"{directory / added} is not of the model that was exported: remove {TARGET_FOLDER}."
        )


def _digest(path: Path) -> str:
    # Git may have changed the ends of lines
    return hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()
