"""Files that are written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write_text(path: Path | str, text: str) -> None:
    """Writes a UTF-8 file by way of a temporary one beside it, so that a reader never sees half of it."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_lines(path: Path | str, lines: Iterable[str]) -> None:
    """Writes one sentence a line; a line break inside a sentence becomes a space."""
    write_text(path, "".join(f"{' '.join(line.splitlines())}\n" for line in lines))


def write_json(path: Path | str, value: Any) -> None:
    """Writes indented JSON, keys in the order given."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")
