# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Finding tokens, passwords and keys before they are written anywhere; what is found is named,
never shown.
"""

import os
import re
from collections.abc import Iterator
from urllib.parse import unquote

from huggingface_hub import get_token

WHERE_INSTEAD = (
    "log in with `hf auth login`, or set HF_TOKEN, or the service's variable (WANDB_API_KEY, ...)"
)

# The last words of a key that holds a credential; names of a tokenizer's special tokens end alike
_KEY = re.compile(
    r"(?:^|_)(?:auth)?(?:tokens?|(?:db)?pass(?:word|wd|phrase)|pwd|secrets?|credentials?"
    r"|(?:api|access|secret|private)_?key|auth|authorization|bearer)$"
)
_SPECIAL = re.compile(
    r"(?:bos|eos|pad|unk|sep|cls|mask|line|special|start|end|stop|suppress)_tokens?$"
)
_FORMS = re.compile(
    # A known prefix and many characters; hf-internal-testing and sk-en-opensubtitles2018 have fewer
    # in a row
    r"\b(?:hf|gh[opsru]|github_pat|sk|xox[a-z]|npm|wandb_v1)[_-][\w-]*[a-z0-9]{18}|\bglpat-[\w-]{16,}|\bAKIA[0-9A-Z]{16}\b"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
    # user:password@host, token@host
    r"|\b[a-z][a-z0-9+.-]*://[^\s/@:]*:[^\s/@]+@|\bhttps?://[^\s/@:]+@"
    r"|[?&](?:[\w-]*[-_])?(?:api)?(?:token|key|password|secret|signature|sig)=[^\s&]+"
    r"|\bAuthorization:\s*\S|\bBearer\s+[\w.~+/-]{16,}",
    re.IGNORECASE,
)


def is_credential_key(key: object) -> bool:
    """Says whether the value of a key is a credential, by the key's name: hub_token, WANDB_API_KEY,
    smtpPassword...
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[\s-]", "_", str(key).rsplit(".", 1)[-1]).lower()
    return _KEY.search(words) is not None and _SPECIAL.search(words) is None


def holds_credential(text: str, known: set[str] | None = None) -> bool:
    """Says whether a text holds a credential: one of this machine (`known`), or one in the form of
    a known service.
    """
    known = _known_here() if known is None else known
    for form in (text, unquote(text)):
        if _FORMS.search(form) or any(secret in form for secret in known):
            return True
    return False


def _known_here() -> set[str]:
    """The token of the Hub's login, and what environment variables such as WANDB_API_KEY hold that
    is no path.
    """
    secrets = set(filter(None, [get_token()]))
    for key, value in os.environ.items():
        is_named = is_credential_key(key) and key not in ("PWD", "OLDPWD")
        # A shorter one may be a word
        if is_named and len(value) >= 12 and not os.path.exists(value):
            secrets.add(value)
    return secrets


def find_credentials(value: object) -> Iterator[str]:
    """Yields the paths of all credentials in what YAML or JSON gave, for example
    `training.hub_token`.
    """
    yield from _find(value, "", set(), _known_here())


def _find(value: object, where: str, seen: set[int], known: set[str]) -> Iterator[str]:
    if isinstance(value, str) and holds_credential(value, known):
        yield where
    if not isinstance(value, dict | list | tuple | set) or id(value) in seen:
        return
    seen.add(id(value))  # YAML's aliases are looked at once, however often they stand there
    if not isinstance(value, dict):
        for number, entry in enumerate(value):
            yield from _find(entry, f"{where}[{number}]", seen, known)
        return
    for key, entry in value.items():
        shown = "a key" if holds_credential(str(key), known) else str(key)
        path = f"{where}.{shown}" if where else shown
        if shown == "a key" or (is_credential_key(key) and _is_set(key, entry)):
            yield path
        else:
            yield from _find(entry, path, seen, known)


def _is_set(key: object, value: object) -> bool:
    """Says whether a credential is given: true and false say whether to look for one, and numbers
    count tokens.
    """
    if isinstance(value, dict):
        return any(_is_set(key, entry) for entry in value.values())
    if isinstance(value, bool) or value in (None, "", []):
        return False
    return (
        not isinstance(value, int | float)
        or re.search(r"tokens?$", str(key), re.IGNORECASE) is None
    )
