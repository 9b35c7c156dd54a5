# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Finding tokens, passwords and keys before they are written anywhere; what is found is named, never shown."""

from __future__ import annotations

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
    r"(?:^|_)(?:tokens?|pass(?:word|wd|phrase)|pwd|secrets?|credentials?|api_?keys?|access_?keys?|secret_?keys?"
    r"|private_?keys?|auth|authorization|bearer)$"
)
_OF_TOKENIZERS = re.compile(
    r"(?:^|_)(?:bos|eos|pad|unk|sep|cls|mask|special|extra|start|end|stop|image|suppress)_tokens?$"
)
_SHAPES = (
    re.compile(r"\bhf_(?:oauth_)?[A-Za-z0-9]{16,}"),  # Hugging Face
    re.compile(r"\bapi_org_[A-Za-z0-9]{16,}"),
    re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,})"),  # GitHub, GitLab
    re.compile(r"\bsk-[\w-]{20,}"),  # OpenAI and others
    re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),  # Amazon
    re.compile(r"\bAIza[\w-]{30,}"),  # Google
    re.compile(r"\bxox[abprs]-[\w-]{10,}"),  # Slack
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}"),  # JSON web tokens
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY"),
    re.compile(r"\b[a-zA-Z][a-zA-Z0-9+.-]*://[^\s/@:]*:[^\s/@]+@"),  # user:password@host
    re.compile(r"[?&](?:access_|auth_|api_)?(?:token|key|password|secret|signature)=[^\s&]+", re.IGNORECASE),
    re.compile(r"\bBearer\s+[\w.~+/-]{16,}"),
)


def is_credential_key(key: Any) -> bool:
    """Says whether what stands under a key is a credential, by its name: hub_token, WANDB_API_KEY, smtpPassword..."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", str(key).rsplit(".", 1)[-1]).lower().replace("-", "_")
    return _KEY.search(words) is not None and _OF_TOKENIZERS.search(words) is None


def holds_credential(text: str) -> bool:
    """Says whether a text holds the token of the Hub's login, or something of the shape that services give theirs."""
    login = get_token()
    forms = {text, unquote(text)}
    return any(login and login in form for form in forms) or any(
        shape.search(form) for form in forms for shape in _SHAPES
    )


def find_credentials(value: Any, where: str = "") -> Iterator[str]:
    """Yields the paths of all credentials in nested mappings and lists, for example ``training.hub_token``.

    Args:
        value: what YAML or JSON gave.
        where: the path of ``value`` itself.
    """
    yield from _find(value, where, set())


def _find(value: Any, where: str, seen: set[int]) -> Iterator[str]:
    if isinstance(value, dict | list | tuple):
        if id(value) in seen:  # YAML's aliases: looked at once, however often they stand there
            return
        seen.add(id(value))
    if isinstance(value, dict):
        for key, entry in value.items():
            shown = "a key" if holds_credential(str(key)) else str(key)
            path = f"{where}.{shown}" if where else shown
            if shown == "a key" or (is_credential_key(key) and _is_set(entry)):
                yield path
            else:
                yield from _find(entry, path, seen)
    elif isinstance(value, list | tuple):
        for number, entry in enumerate(value):
            yield from _find(entry, f"{where}[{number}]", seen)
    elif isinstance(value, str) and holds_credential(value):
        yield where


def _is_set(value: Any) -> bool:
    """Says whether a credential is given: true and false say whether to look for one, and numbers count tokens."""
    return value not in (None, "", [], {}) and not isinstance(value, bool | int | float | dict)
