# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A Hub on this machine: what huggingface_hub's client calls to make, fill and read a repository.

Repositories live in memory. A commit's name is the hash of its files, so that a client sees whether something changed.
"""

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass
class Repository:
    """Files by path, the messages of the commits, and the files as each of them left them."""

    files: dict[str, bytes] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    history: list[dict[str, bytes]] = field(default_factory=list)

    @property
    def commit(self) -> str:
        digest = hashlib.sha1(str(len(self.messages)).encode())
        for path in sorted(self.files):
            digest.update(path.encode() + b"\0" + self.files[path])
        return digest.hexdigest()

    def siblings(self) -> list[dict[str, Any]]:
        return [{"rfilename": path} for path in sorted(self.files)]

    def tree(self) -> list[dict[str, Any]]:
        return [
            {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
            for path, content in sorted(self.files.items())
        ]


class LoopbackHub:
    """The server; use as a context manager. `repositories` maps names to what they hold."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: list[str] = []
        handler = type("Handler", (_Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> "LoopbackHub":
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: LoopbackHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: Any) -> None:
        self.hub.requests.append(f"{self.command} {self.path}")

    def do_HEAD(self) -> None:
        self._get()

    def do_GET(self) -> None:
        self._get()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = urlsplit(self.path).path
        if path == "/api/repos/create":
            request = json.loads(body)
            name = "/".join(filter(None, (request.get("organization") or "tester", request["name"])))
            self.hub.repositories.setdefault(name, Repository())
            return self._json({"url": f"{self.hub.url}/{name}", "name": name, "id": name})
        if path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        if match := re.fullmatch(r"/api/models/(.+)/preupload/.+", path):
            files = json.loads(body)["files"]
            return self._json(
                {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]}
            )
        if match := re.fullmatch(r"/api/models/(.+)/commit/.+", path):
            return self._commit(self.hub.repositories[match[1]], match[1], body)
        return self._error(404, "RepoNotFound")

    def _commit(self, repository: Repository, name: str, body: bytes) -> None:
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                repository.messages.append(value["summary"])
            elif entry["key"] == "file":
                repository.files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] in ("deletedFile", "deletedFolder"):
                for path in [path for path in repository.files if path.startswith(value["path"])]:
                    del repository.files[path]
        repository.history.append(dict(repository.files))
        commit = repository.commit
        self._json(
            {"commitUrl": f"{self.hub.url}/{name}/commit/{commit}", "commitOid": commit, "pullRequestUrl": None}
        )

    def _get(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if path == "/api/whoami-v2":
            return self._json({"name": "tester", "type": "user", "orgs": [], "auth": {"type": "access_token"}})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/[^/]+(?:/(.*))?)?", path):
            return self._describe(match[1], match[2])
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            return self._file(match[1], match[2])
        return self._error(404, "RepoNotFound")

    def _describe(self, name: str, what: str | None) -> None:
        repository = self.hub.repositories.get(name)
        if repository is None:
            return self._error(404, "RepoNotFound")
        if what == "tree":
            return self._json(repository.tree())
        info = {"id": name, "modelId": name, "sha": repository.commit, "siblings": repository.siblings()}
        return self._json({**info, "private": False, "tags": [], "downloads": 0, "likes": 0})

    def _file(self, name: str, path: str) -> None:
        repository = self.hub.repositories.get(name)
        if repository is None:
            return self._error(404, "RepoNotFound")
        if path not in repository.files:
            return self._error(404, "EntryNotFound", repository.commit)
        content = repository.files[path]
        headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": repository.commit}
        return self._send(200, content, {**headers, "Content-Type": "application/octet-stream"})

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _error(self, status: int, code: str, commit: str | None = None) -> None:
        headers = {"X-Error-Code": code, **({"X-Repo-Commit": commit} if commit else {})}
        self._send(status, json.dumps({"error": code}).encode(), headers)

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
