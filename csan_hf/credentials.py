# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Finding tokens, passwords and keys before they are written anywhere; what is found is named, never shown."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from huggingface_hub import get_token

WHERE_INSTEAD = (
    "log in with `hf auth login`, or set HF_TOKEN, or the environment variable of the service (WANDB_API_KEY, ...)"
)

# The last words of a key that holds a credential. Keys of special tokens and numbers of tokens end alike.
_KEY = re.compile(
    r"(?:^|_)(?:auth)?(?:tokens?|(?:pg|db)?pass(?:word|wd|phrase)\d*|pwd|secrets?|credentials?|(?:api|wandb|access"
    r"|secret|private)_?keys?|auth|authorization|bearer)$"
)
_OF_TOKENIZERS = re.compile(
    r"(?:^|_)(?:bos|eos|pad|unk|sep|cls|mask|special|extra|start|end|stop|image|suppress)_tokens?$"
)
_SHAPES = (
    # Hugging Face, GitHub, GitLab, OpenAI, Slack, npm...: a known prefix and many characters
    re.compile(r"\b(?:hf|gh[opsru]|github_pat|glpat|api_org|sk|xox[a-z]|npm|wandb_v1)[_-](?:oauth_)?[\w-]{16,}"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY"),
    re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s/@:]*:[^\s/@]+@", re.IGNORECASE),  # user:password@host
    re.compile(r"\bhttps?://[^\s/@:]+@", re.IGNORECASE),  # token@host
    re.compile(r"[?&](?:[\w-]*[-_])?(?:api)?(?:token|key|password|secret|signature|sig)=[^\s&]+", re.IGNORECASE),
    re.compile(r"\bAuthorization:\s*\S|\bBearer\s+[\w.~+/-]{16,}", re.IGNORECASE),
)


def is_credential_key(key: Any) -> bool:
    """Says whether the value of a key is a credential, by the key's name: hub_token, WANDB_API_KEY, smtpPassword..."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", str(key).rsplit(".", 1)[-1]).lower()
    words = re.sub(r"[\s-]", "_", words)
    return _KEY.search(words) is not None and _OF_TOKENIZERS.search(words) is None


def holds_credential(text: str) -> bool:
    """Says whether a text holds a credential: one of this machine, or one in the form of a known service."""
    return _holds(text, _known_here())


def _holds(text: str, known: set[str]) -> bool:
    forms = {text, unquote(text)}
    return any(part in form for form in forms for part in known) or any(
        shape.search(form) for form in forms for shape in _SHAPES
    )


_SHORTEST = 12  # characters, of what is looked for everywhere because of the name of its environment variable


def _known_here() -> set[str]:
    """Returns the token of the Hub's login, and what stands in environment variables such as WANDB_API_KEY.

    A path is none, whatever variable names it: PWD, or GOOGLE_APPLICATION_CREDENTIALS.
    """
    named = {key: value for key, value in os.environ.items() if is_credential_key(key) and len(value) >= _SHORTEST}
    secrets = {value for key, value in named.items() if key not in ("PWD", "OLDPWD") and not os.path.exists(value)}
    return {*secrets, *filter(None, [get_token()])}


def find_credentials(value: Any, where: str = "") -> Iterator[str]:
    """Yields the paths of all credentials in nested mappings and lists, for example `training.hub_token`.

    Args:
        value: What YAML or JSON gave.
        where: The path of `value` itself.

    Raises:
        ValueError: If it is nested too deeply to be looked at.
    """
    try:
        yield from _find(value, where, set(), _known_here())
    except RecursionError:
        raise ValueError(f"{where or 'what is looked at for credentials'} is nested too deeply") from None


def _find(value: Any, where: str, seen: set[int], known: set[str]) -> Iterator[str]:
    if isinstance(value, dict | list | tuple):
        if id(value) in seen:  # YAML's aliases: looked at once, however often they stand there
            return
        seen.add(id(value))
    if isinstance(value, dict):
        for key, entry in value.items():
            shown = "a key" if _holds(str(key), known) else str(key)
            path = f"{where}.{shown}" if where else shown
            if shown == "a key" or (is_credential_key(key) and _is_set(key, entry)):
                yield path
            else:
                yield from _find(entry, path, seen, known)
    elif isinstance(value, list | tuple | set):
        for number, entry in enumerate(value):
            yield from _find(entry, f"{where}[{number}]", seen, known)
    elif isinstance(value, str) and _holds(value, known):
        yield where


def _is_set(key: Any, value: Any) -> bool:
    """Says whether a credential is given: true and false say whether to look for one, and numbers count tokens."""
    if isinstance(value, dict):
        return any(_is_set(key, entry) for entry in value.values())
    if isinstance(value, bool) or value in (None, "", []):
        return False
    return not isinstance(value, int | float) or re.search(r"tokens?$", str(key), re.IGNORECASE) is None
