"""The URL of a Redis server, of the Sentinels that know it, or of a cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from apexrl.errors import ConfigError

Kind = Literal["server", "sentinel", "cluster"]

_OPTIONS: Final = re.compile(r"db|ssl_(ca_certs|ca_path|certfile|keyfile|cert_reqs|check_hostname)")
_OF_SENTINELS: Final = ("sentinel_username", "sentinel_password")
_SCHEMES: Final = re.compile(r"(rediss?)\+(sentinel|cluster)")
_PORTS: Final[dict[Kind, int]] = {"server": 6379, "sentinel": 26379, "cluster": 6379}
_MASTER: Final = re.compile(r"[\w.-]+", re.ASCII)


@dataclass(frozen=True)
class Node:
    """Host and port of one server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Address:
    """Where to ask. Its ``repr`` holds no password."""

    kind: Kind
    nodes: tuple[Node, ...]
    """The server, Sentinels, or nodes of the cluster; empty: a socket."""
    shown: str
    """For messages: without user and password."""
    master: str
    """The name by which Sentinels know the server."""
    tls: bool
    _credentials: str
    _sentinel_credentials: str
    _path: str
    _query: str

    def __repr__(self) -> str:
        return f"Address({self.shown})"

    def url(self, node: Node | None) -> str:
        """For redis-py: of the server at ``node``, or (None) of the only one."""
        if node is None and not self.nodes:
            return f"unix://{self._credentials}{self._path}{self._query}"
        return self._of(self._credentials, self._path, node or self.nodes[0])

    def sentinel_url(self, node: Node) -> str:
        """The same of a Sentinel."""
        return self._of(self._sentinel_credentials, "", node)

    def _of(self, credentials: str, path: str, node: Node) -> str:
        return f"{'rediss' if self.tls else 'redis'}://{credentials}{node}{path}{self._query}"


def parse(url: str) -> Address:
    """The address that a URL means: ``redis://``, ``rediss://`` (TLS), ``unix://``, ``redis+sentinel://H:P,…/MASTER``,
    ``redis+cluster://H:P,…``, and both with ``rediss``.

    Raises:
        ConfigError: this is not the URL of a Redis server. The message does not quote it: it may hold a password.
    """
    scheme = url.partition("://")[0]
    several = _SCHEMES.fullmatch(scheme)
    kind: Kind = "server" if several is None else "sentinel" if several[2] == "sentinel" else "cluster"
    try:
        parts = urlsplit(url)
        credentials, at, hosts = parts.netloc.rpartition("@")
        nodes = [_node(word, _PORTS[kind]) for word in hosts.split(",")] if scheme != "unix" else []
        options = parse_qs(parts.query, keep_blank_values=True)
        if "@" in credentials or "@" in parts.path:
            raise ValueError("an @ that is not percent-encoded")
    except ValueError:
        raise ConfigError(
            "the Redis URL cannot be read: redis://USER:PASSWORD@HOST:PORT, a port of at most 65535, special "
            "characters in the password percent-encoded (/ is %2F, # is %23, @ is %40)"
        ) from None
    if several is None and scheme not in ("redis", "rediss", "unix"):
        raise ConfigError(
            "the Redis URL must begin with redis://, rediss:// (TLS), unix://, redis+sentinel:// or redis+cluster://"
        )
    known = _OF_SENTINELS if kind == "sentinel" else ()
    unknown = [name for name in options if not _OPTIONS.fullmatch(name) and name not in known]
    if unknown:
        raise ConfigError(f"the Redis URL has an option that is none: {unknown[0]!r}; known: db, ssl_…")
    if scheme == "unix":
        if not parts.path:
            raise ConfigError("the Redis URL names no socket: unix:///PATH")
    elif not all(node.host for node in nodes):
        raise ConfigError("the Redis URL names no host: redis://HOST:PORT")
    elif len(nodes) > 1 and several is None:
        raise ConfigError(
            "the Redis URL names several hosts: with Sentinels redis+sentinel://HOST:PORT,HOST:PORT/MASTER, of a "
            "cluster redis+cluster://HOST:PORT,HOST:PORT"
        )
    path, master = parts.path, ""
    if kind == "sentinel":
        master, _, path = parts.path.strip("/").partition("/")
        if not _MASTER.fullmatch(master):
            raise ConfigError(
                "the Redis URL names no master as the Sentinels know it: redis+sentinel://HOST:26379/MASTER"
            )
        path = f"/{path}" if path else ""
    if scheme != "unix" and path.strip("/") and not path.strip("/").isdigit():
        raise ConfigError("the Redis URL's path must be a database number: redis://HOST:PORT/0")
    if kind == "cluster" and ({path.strip("/"), *options.get("db", ())} - {"", "0"}):
        raise ConfigError("a Redis cluster has database 0 alone: leave the number out of the URL")
    own = {name: values[-1] for name, values in options.items() if name not in _OF_SENTINELS}
    user, word = (options.get(name, [""])[-1] for name in _OF_SENTINELS)
    shown = parts.path if scheme == "unix" else ",".join(map(str, nodes)) + (f"/{master}" if master else "")
    return Address(
        kind=kind,
        nodes=tuple(nodes),
        shown=shown,
        master=master,
        tls=scheme.startswith("rediss"),
        _credentials=f"{credentials}{at}",
        _sentinel_credentials=f"{_quoted(user)}:{_quoted(word)}@" if word else "",
        _path=path,
        _query=f"?{urlencode(own)}" if own else "",
    )


def _node(word: str, port: int) -> Node:
    """HOST, HOST:PORT or [HOST]:PORT. Raises ValueError."""
    parts = urlsplit(f"//{word}")
    return Node(unquote(parts.hostname or ""), port if parts.port is None else parts.port)


def _quoted(text: str) -> str:
    return urlencode({"": text})[1:].replace("+", "%20")
