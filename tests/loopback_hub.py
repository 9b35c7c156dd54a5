# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A Hub on this machine: what huggingface_hub's client calls to make, fill and read a repository.

Repositories live in memory. A commit's name is the hash of its files, so that a client sees whether
something changed."""

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass
class Repository:
    """Files by path, the messages of the commits, the files as each of them left them, and the
    names of branches, which all hold the newest files."""

    files: dict[str, bytes] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    history: list[dict[str, bytes]] = field(default_factory=list)
    branches: set[str] = field(default_factory=lambda: {"main"})

    @property
    def commit(self) -> str:
        return self.name(self.files, len(self.messages))

    @staticmethod
    def name(files: dict[str, bytes], number: int) -> str:
        digest = hashlib.sha1(str(number).encode())
        for path in sorted(files):
            digest.update(path.encode() + b"\0" + files[path])
        return digest.hexdigest()

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """The name and files of a commit; of a branch, those of the newest; None of others."""
        commits = {
            self.name(files, number): files for number, files in enumerate(self.history, start=1)
        }
        if revision in self.branches:
            return self.commit, self.files
        return (revision, commits[revision]) if revision in commits else None


class LoopbackHub:
    """The server; use as a context manager. `repositories` maps names to what they hold."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: list[str] = []
        handler = type("Handler", (_Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> "LoopbackHub":
        serve = partial(self.server.serve_forever, poll_interval=0.02)  # seconds until it ends
        threading.Thread(target=serve, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: LoopbackHub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # the content need not wait for the headers' acknowledgement

    def log_message(self, *arguments: Any) -> None:
        self.hub.requests.append(f"{self.command} {self.path}")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = urlsplit(self.path).path
        if path == "/api/repos/create":
            request = json.loads(body)
            name = f"{request.get('organization') or 'tester'}/{request['name']}"
            self.hub.repositories.setdefault(name, Repository())
            self._json({"url": f"{self.hub.url}/{name}", "name": name, "id": name})
        elif path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif re.fullmatch(r"/api/models/(.+)/preupload/.+", path):
            regular = {"uploadMode": "regular", "shouldIgnore": False}
            self._json(
                {"files": [{"path": file["path"], **regular} for file in json.loads(body)["files"]]}
            )
        elif match := re.fullmatch(r"/api/models/(.+)/commit/.+", path):
            commit = self._commit(self.hub.repositories[match[1]], body)
            url = f"{self.hub.url}/{match[1]}/commit/{commit}"
            self._json({"commitUrl": url, "commitOid": commit, "pullRequestUrl": None})
        elif match := re.fullmatch(r"/api/models/(.+)/branch/(.+)", path):
            self.hub.repositories[match[1]].branches.add(unquote(match[2]))
            self._json({})
        else:
            self._error("RepoNotFound")

    @staticmethod
    def _commit(repository: Repository, body: bytes) -> str:
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
        return repository.commit

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if path == "/api/whoami-v2":
            return self._json(
                {"name": "tester", "type": "user", "orgs": [], "auth": {"type": "access_token"}}
            )
        described = re.fullmatch(
            r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+)(?:/(.*))?)?", path
        )
        resolved = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        match = described or resolved
        repository = self.hub.repositories.get(match[1]) if match else None
        if repository is None:
            return self._error("RepoNotFound")
        snapshot = repository.at((resolved[2] if resolved else described[3]) or "main")
        if snapshot is None:
            return self._error("RevisionNotFound")
        commit, files = snapshot
        oids = {path: hashlib.sha1(content).hexdigest() for path, content in sorted(files.items())}
        if resolved:
            headers = {"X-Repo-Commit": commit}
            if resolved[3] not in oids:
                return self._error("EntryNotFound", headers)
            headers |= {
                "ETag": f'"{oids[resolved[3]]}"',
                "Content-Type": "application/octet-stream",
            }
            return self._send(200, files[resolved[3]], headers)
        if described[2] == "tree":
            sizes = {path: len(files[path]) for path in oids}
            return self._json(
                [
                    {"type": "file", "path": p, "size": sizes[p], "oid": oid}
                    for p, oid in oids.items()
                ]
            )
        info = {"id": match[1], "modelId": match[1], "sha": commit, "private": False, "tags": []}
        return self._json(
            {**info, "siblings": [{"rfilename": path} for path in oids], "downloads": 0, "likes": 0}
        )

    def do_HEAD(self) -> None:
        self.do_GET()

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _error(self, code: str, headers: dict[str, str] | None = None) -> None:
        self._send(
            404, json.dumps({"error": code}).encode(), {"X-Error-Code": code, **(headers or {})}
        )

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
