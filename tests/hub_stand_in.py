"""A Hugging Face hub in a thread: the calls by which its library makes a repository, commits files and reads them."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "1" * 40


class HubStandIn:
    """Serves ``files`` of one repository at ``url``; close it."""

    def __init__(self, repository: str) -> None:
        self.repository = repository
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None: ...

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if self.headers.get("Transfer-Encoding") == "chunked":
                    body = b""
                    while size := int(self.rfile.readline(), 16):
                        body += self.rfile.read(size)
                        self.rfile.readline()
                    self.rfile.readline()
                self._answer(*hub.post(urlsplit(self.path).path, body))

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                self._answer(*hub.get(unquote(urlsplit(self.path).path)))

            def _answer(self, status: int, content: bytes, headers: Mapping[str, str] = MappingProxyType({})) -> None:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        self.asked.append(f"POST {path}")
        url = f"{self.url}/{self.repository}"
        if path == "/api/repos/create":
            return 200, json.dumps({"url": url, "id": self.repository, "name": self.repository}).encode()
        if path == f"/api/models/{self.repository}/preupload/main":
            named = [{"path": one["path"], "uploadMode": "regular"} for one in json.loads(body)["files"]]
            return 200, json.dumps({"files": [{**one, "shouldIgnore": False} for one in named]}).encode()
        if path == f"/api/models/{self.repository}/commit/main":
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            return 200, json.dumps(
                {"commitUrl": f"{url}/commit/{COMMIT}", "commitOid": COMMIT, "success": True}
            ).encode()
        if path == "/api/validate-yaml":
            return 200, b'{"errors": [], "warnings": []}'
        return 404, b"{}"

    def get(self, path: str) -> Any:
        self.asked.append(f"GET {path}")
        if path in (f"/api/models/{self.repository}", f"/api/models/{self.repository}/revision/main"):
            siblings = [{"rfilename": name} for name in self.files]
            return 200, json.dumps({"id": self.repository, "sha": COMMIT, "siblings": siblings}).encode()
        if path.startswith(f"/api/models/{self.repository}/tree/"):
            entries = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in self.files.items()
            ]
            return 200, json.dumps(entries).encode()
        for revision in (COMMIT, "main"):
            name = path.removeprefix(f"/{self.repository}/resolve/{revision}/")
            if name in self.files:
                return (
                    200,
                    self.files[name],
                    {"ETag": f'"{hashlib.sha1(self.files[name]).hexdigest()}"', "X-Repo-Commit": COMMIT},
                )
        return 404, b"{}"
