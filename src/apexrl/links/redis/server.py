"""The Redis server of a run: connecting, checks of its configuration, and error messages.

The URL holds the password. It never appears in a message, a ``repr``, a log or a file; only ``pickle`` (to start local
processes) contains it.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from apexrl.errors import ConfigError, LinkError

OLDEST_VERSION = (6, 2)
"""The first with XADD NOMKSTREAM; Valkey says 7.2."""

DEFAULT_BULK_BYTES = 512 * 2**20
"""``proto-max-bulk-len`` assumed where CONFIG is refused, as by managed services."""

TROUBLE = (
    LinkError,  # from `Server.connect`
    exceptions.ConnectionError,  # also: loading, wrong password, too many clients
    exceptions.TimeoutError,
    exceptions.InvalidResponse,
    exceptions.OutOfMemoryError,
    exceptions.ReadOnlyError,
    exceptions.ExecAbortError,
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
)
"""Errors that may be temporary: close the connection, wait (`Backoff`), try again."""

_OPTIONS = re.compile(r"db|ssl_(ca_certs|ca_path|certfile|keyfile|cert_reqs|check_hostname)")


class ServerFacts(NamedTuple):
    """A server's properties."""

    version: str
    run_id: str  # changes when the server restarts
    policy: str  # maxmemory-policy
    most_memory: int  # bytes; 0: no limit
    most_bulk: int  # bytes of the largest single value


class Server:
    """A Redis server by URL (``redis://``, ``rediss://`` for TLS, ``unix://``); picklable; holds no connection.

    Args:
        url: with user and password if the server requires them, percent-encoded; TLS files as a query
            (``?ssl_ca_certs=FILE``, ``ssl_certfile``, ``ssl_keyfile``).
        timeout: seconds that a connection or a reply may take.

    Raises:
        ConfigError: the URL is invalid.
    """

    def __init__(self, url: str, timeout: float = 10.0) -> None:
        self._url = url
        self.timeout = timeout
        self.address = _address(url)
        try:
            redis.Redis.from_url(url, **self._options()).connection_pool.make_connection()
        except (ValueError, TypeError, AttributeError, exceptions.RedisError):
            raise ConfigError(f"the Redis URL of {self.address} has an option with a wrong value") from None

    def __repr__(self) -> str:
        return f"Server({self.address})"

    def connect(self, read_bytes: int = 65536) -> redis.Redis:
        """One connection, open: protocol 2, bytes in and out, no retries of its own. For one thread; close it.

        Args:
            read_bytes: taken from the socket at a time.

        Raises:
            LinkError: there is no connection; the message says why.
        """
        try:
            client = redis.Redis.from_url(
                self._url, **self._options(), single_connection_client=True, socket_read_size=read_bytes
            )
        except (exceptions.RedisError, OSError, ValueError) as error:
            told = explain(error, self.address)
            if self._url.startswith("rediss:") and isinstance(error, exceptions.TimeoutError):
                told = LinkError(f"{told} (if it does not speak TLS, use redis:// instead of rediss://)")
            raise told from None
        return client

    def check(self) -> ServerFacts:
        """The server's properties, if it is suitable for a run.

        Raises:
            LinkError: it cannot be reached, is older than 6.2 or a replica, or may evict streams.
                A ``volatile-*`` policy is accepted: while a run goes on, only parts of weights have a time to live,
                and only until their head is written.
        """
        client = self.connect()
        try:
            return check(client, self.address)
        except exceptions.RedisError as error:
            raise explain(error, self.address) from None
        finally:
            client.close()

    def _options(self) -> dict[str, Any]:
        options = {"protocol": 2, "socket_timeout": self.timeout, "retry": Retry(NoBackoff(), 0)}
        if not self._url.startswith("unix:"):
            options |= {"socket_connect_timeout": self.timeout, "socket_keepalive": True}
        return options


def check(client: redis.Redis, address: str) -> ServerFacts:
    """Like `Server.check`, over an open connection. Raises redis-py's errors."""
    told: dict[str, Any] = client.info()
    version = str(told.get("redis_version", "0"))
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST_VERSION:
        raise LinkError(f"Redis at {address} is version {version}: runs need 6.2 or later, or Valkey")
    if told.get("role", "master") != "master":
        raise LinkError(f"Redis at {address} is a replica, which takes no writes: give the address of its master")
    policy = str(told.get("maxmemory_policy", "noeviction"))
    if policy.startswith("allkeys"):
        raise LinkError(
            f"Redis at {address} has maxmemory-policy {policy}, which may delete experience unseen: "
            "set it to noeviction (CONFIG SET maxmemory-policy noeviction)"
        )
    return ServerFacts(version, str(told.get("run_id", "")), policy, int(told.get("maxmemory", 0)), _most_bulk(client))


def explain(error: Exception, address: str) -> LinkError:
    """A redis-py or socket error as a message that says what to do, without the password."""
    if isinstance(error, LinkError):
        return error
    text = str(error)
    where = f"Redis at {address}"
    for pattern, words in _WORDS:
        if re.search(pattern, text) or re.search(pattern, type(error).__name__):
            return LinkError(words.format(where=where, text=text))
    if any(isinstance(one, ssl.SSLError) for one in _chain(error)):
        return LinkError(f"{where}: TLS failed: {text}")
    return LinkError(f"{where}: {text or type(error).__name__}")


_PASSWORD = "{where} refuses this user or password (special characters in the URL are percent-encoded)"

_WORDS = (  # first match wins; `text` only where the server cannot echo what we sent, such as a password
    ("unknown command", "{where} lacks a command that runs need; Redis 6.2 or later and Valkey have it"),
    ("without any password configured", "{where} has no password, and the URL gives one: leave it out"),
    ("WRONGPASS|invalid password|invalid username", _PASSWORD),
    ("NOAUTH|Authentication required", "{where} wants a password: redis://:PASSWORD@HOST:PORT"),
    ("AuthenticationError|AuthenticationWrongNumber", _PASSWORD),
    ("NOPERM|NoPermission", "{where} does not allow this user what a run does: {text}"),
    (
        "(?i)certificate.verify.failed",
        "{where} has a TLS certificate that is not trusted here; name its authority with ?ssl_ca_certs=FILE ({text})",
    ),
    (
        "(?i)wrong.version.number|unexpected.eof|record layer|unknown.protocol",
        "{where} does not speak TLS: use redis:// instead of rediss://",
    ),
    ("No such file or directory", "{where}: a file that the URL names is not there ({text})"),
    ("InvalidResponse|Protocol Error", "{where} does not answer as Redis does: if it expects TLS, use rediss://"),
    ("Connection refused", "{where}: nothing listens there (connection refused)"),
    ("not known|No address associated|name resolution|nodename nor servname", "{where}: no host has that name"),
    ("No route to host|Network is unreachable", "{where}: there is no way to that host ({text})"),
    ("(?i)timeout|timed out", "{where} does not answer in time"),
    (
        "(?i)closed by server|reset by peer|broken pipe",
        "{where} closed the connection (if it expects TLS, use rediss://)",
    ),
    ("OutOfMemory|OOM", "{where} is full: raise its maxmemory, or lower --window-mb"),
    ("MISCONF", "{where} cannot write its snapshots to disk and takes no writes: see its log"),
    ("READONLY|ReadOnly", "{where} is a replica, which takes no writes"),
    ("LOADING|BusyLoading", "{where} is loading its data"),
    ("MOVED|MovedError", "{where} is one node of a cluster, and another has this run's keys: connect to that ({text})"),
    ("CLUSTERDOWN|ClusterDown", "{where} is a node of a cluster that is down"),
    ("max number of clients", "{where} has no room for another client (maxclients)"),
)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _most_bulk(client: redis.Redis) -> int:
    try:
        told: dict[Any, Any] = client.config_get("proto-max-bulk-len")
        return int(next(iter(told.values())))
    except (exceptions.ResponseError, StopIteration):  # not permitted
        return DEFAULT_BULK_BYTES


def _address(url: str) -> str:
    """``host:port`` or a socket's path, for messages.

    Raises:
        ConfigError: this is not the URL of a Redis server. The message does not quote it: it may hold a password.
    """
    try:
        parts = urlsplit(url)
        host, port, options = parts.hostname, parts.port, parse_qs(parts.query)
    except ValueError:
        raise ConfigError(
            "the Redis URL cannot be read: redis://USER:PASSWORD@HOST:PORT, special characters in the password "
            "percent-encoded (/ is %2F, # is %23, @ is %40)"
        ) from None
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise ConfigError("the Redis URL must begin with redis://, rediss:// (TLS) or unix://")
    unknown = [name for name in options if not _OPTIONS.fullmatch(name)]
    if unknown:
        raise ConfigError(f"the Redis URL has an option that is none: {unknown[0]!r}; known: db, ssl_…")
    if parts.scheme == "unix":
        if not parts.path:
            raise ConfigError("the Redis URL names no socket: unix:///PATH")
        return parts.path
    if parts.path.strip("/") and not parts.path.strip("/").isdigit():
        raise ConfigError("the Redis URL's path must be a database number: redis://HOST:PORT/0")
    if host is None:
        raise ConfigError("the Redis URL names no host: redis://HOST:PORT")
    return f"[{host}]:{port or 6379}" if ":" in host else f"{host}:{port or 6379}"
