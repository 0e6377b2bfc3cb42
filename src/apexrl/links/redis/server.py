"""The Redis server of a run: connecting, checks of its configuration, and error messages.

The URL holds the password. It never appears in a message, a ``repr``, a log or a file; only ``pickle`` (to start local
processes) contains it.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from typing import Any, NamedTuple

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from apexrl.errors import ConfigError, LinkError
from apexrl.links.redis.address import Node, parse

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

_ASK_SECONDS = 2.0  # of one Sentinel, or one node of a cluster: there are others
_MOST_NODES = 64  # of a cluster, that are remembered


class ServerFacts(NamedTuple):
    """A server's properties."""

    version: str
    run_id: str  # changes when the server restarts
    policy: str  # maxmemory-policy
    most_bulk: int  # bytes of the largest single value


class Server:
    """A Redis server by URL; picklable; holds no connection.

    ``redis://``, ``rediss://`` for TLS, ``unix://``. ``redis+sentinel://H:P,H:P/MASTER`` is the server that Sentinels
    call its master now, ``redis+cluster://H:P,H:P`` the node of a cluster that has a run's keys now. Each connection
    looks for it anew, so a server that took over is found as one that was restarted.

    Args:
        url: with user and password if the server requires them, percent-encoded; TLS files as a query
            (``?ssl_ca_certs=FILE``, ``ssl_certfile``, ``ssl_keyfile``). Of Sentinels that have a password of their own:
            ``?sentinel_password=WORD`` (``sentinel_username``).
        timeout: seconds that a connection or a reply may take.

    Raises:
        ConfigError: the URL is invalid.
    """

    def __init__(self, url: str, timeout: float = 10.0) -> None:
        self._where = parse(url)
        self._nodes = self._where.nodes  # of the cluster, as far as they are known; Sentinels, the last to answer first
        self.timeout = timeout
        self.address = self._where.shown
        try:
            redis.Redis.from_url(self._where.url(None), **self._options()).connection_pool.make_connection()
        except (ValueError, TypeError, AttributeError, exceptions.RedisError):
            raise ConfigError(f"the Redis URL of {self.address} has an option with a wrong value") from None

    def __repr__(self) -> str:
        return f"Server({self.address})"

    def connect(self, read_bytes: int = 65536, key: str = "") -> redis.Redis:
        """One connection, open: protocol 2, bytes in and out, no retries of its own. For one thread; close it.

        Args:
            read_bytes: taken from the socket at a time.
            key: to use; in a cluster its node is connected to. Empty: any of them.

        Raises:
            LinkError: there is no connection; the message says why.
        """
        node, shown = None, self.address
        if self._where.kind != "server":
            node = self._master() if self._where.kind == "sentinel" else self._owner(key)
            shown = f"{node} (of {self.address})"
        client = self._open(self._where.url(node), shown, read_bytes=read_bytes)
        if self._where.kind == "sentinel" and b"role:master" not in _ask(client, shown, "INFO", "replication"):
            client.close()
            raise LinkError(f"Redis at {shown} is no master yet, or no longer")
        return client

    def nodes(self) -> list[Server]:
        """The servers that keep keys: this one, or each master of a cluster.

        Raises:
            LinkError: no node of the cluster answers.
        """
        if self._where.kind != "cluster":
            return [self]
        return [Server(self._where.url(node), self.timeout) for node in dict.fromkeys(self._slots().values())]

    def own_address(self) -> str:
        """The address of this host's interface by which it reaches the server; 127.0.0.1 for one behind a socket's
        path.

        Raises:
            LinkError: there is no way to the server.
        """
        why = ""
        for node in self._where.nodes:
            try:
                known = socket.getaddrinfo(node.host, node.port, type=socket.SOCK_DGRAM)
                family, kind, protocol, _, address = known[0]
                with socket.socket(family, kind, protocol) as probe:
                    probe.connect(address)  # sends nothing: the system looks for the way
                    return str(probe.getsockname()[0])
            except OSError as error:
                why = str(error)
        if self._where.nodes:
            raise LinkError(f"Redis at {self.address}: there is no way to that host ({why})")
        return "127.0.0.1"

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

    def _open(self, url: str, shown: str, **options: Any) -> redis.Redis:
        """A connection to one server."""
        read_bytes = options.pop("read_bytes", 65536)
        try:
            return redis.Redis.from_url(
                url, **self._options() | options, single_connection_client=True, socket_read_size=read_bytes
            )
        except (exceptions.RedisError, OSError, ValueError) as error:
            told = explain(error, shown)
            if self._where.tls and isinstance(error, exceptions.TimeoutError):
                told = LinkError(f"{told} (if it does not speak TLS, use redis:// instead of rediss://)")
            raise told from None

    def _options(self) -> dict[str, Any]:
        options = {"protocol": 2, "socket_timeout": self.timeout, "retry": Retry(NoBackoff(), 0)}
        if self._where.nodes:
            options |= {"socket_connect_timeout": self.timeout, "socket_keepalive": True}
        return options

    def _ask_any(self, *words: str) -> Any:
        """What the first Sentinel, or node of the cluster, answers.

        Raises:
            LinkError: none does, or it is not what the URL says.
        """
        seconds = min(self.timeout, _ASK_SECONDS)
        quick = {"socket_timeout": seconds, "socket_connect_timeout": seconds}
        sentinels = self._where.kind == "sentinel"
        why: LinkError | None = None
        for node in self._nodes:
            try:
                url = self._where.sentinel_url(node) if sentinels else self._where.url(node)
                client = self._open(url, str(node), **quick)
                try:
                    answer = _ask(client, str(node), *words)
                finally:
                    client.close()
            except LinkError as error:
                why = error
                continue
            if answer is not None:
                self._nodes = (node, *(one for one in self._nodes if one != node))
                return answer
            why = LinkError(f"the Sentinel at {node} knows no master {self._where.master!r}")
        who = "Sentinels" if sentinels else "nodes of the cluster"
        raise LinkError(f"none of the {who} {self.address} helps: {why}")

    def _master(self) -> Node:
        """The server that Sentinels name."""
        host, port = self._ask_any("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._where.master)
        return Node(host.decode(), int(port))

    def _owner(self, key: str) -> Node:
        """The cluster's node with ``key``."""
        slots = self._slots()
        wanted = key_slot(key.encode()) if key else None
        for (first, last), node in slots.items():
            if wanted is None or first <= wanted <= last:
                return node
        raise LinkError(f"no node of the Redis cluster {self.address} has the slot {wanted} of {key}")

    def _slots(self) -> dict[tuple[int, int], Node]:
        """(first, last) of a range of slots -> its master."""
        found: dict[tuple[int, int], Node] = {}
        everybody: list[Node] = []
        for first, last, *nodes in self._ask_any("CLUSTER", "SLOTS"):
            asked = self._nodes[0].host
            named = [Node((one[0] or b"").decode() or asked, int(one[1])) for one in nodes]
            found[int(first), int(last)] = named[0]
            everybody += named
        if not found:
            raise LinkError(f"the Redis cluster {self.address} has given its slots to no node")
        self._nodes = tuple(dict.fromkeys((*self._nodes, *everybody)))[:_MOST_NODES]
        return found


def check(client: redis.Redis, address: str) -> ServerFacts:
    """Like `Server.check`, over an open connection. Raises redis-py's errors."""
    told: dict[str, Any] = client.info()
    version = str(told.get("redis_version", "0"))
    if "sentinel" in (told.get("redis_mode"), told.get("server_mode")):  # as Redis and Valkey call it
        raise LinkError(f"{address} is a Sentinel, not a server: use redis+sentinel://{address}/MASTER")
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
    return ServerFacts(version, str(told.get("run_id", "")), policy, _most_bulk(client))


def _ask(client: redis.Redis, shown: str, *words: str) -> Any:
    """One command and its reply, as the server sent it."""
    line: Any = client.connection
    try:
        line.send_command(*words)
        return line.read_response()
    except (exceptions.RedisError, OSError) as error:
        raise explain(error, shown) from None


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
    ("cluster support disabled", "{where} is no node of a cluster: use redis:// instead of redis+cluster://"),
    ("(?i)unknown command.*sentinel", "{where} is no Sentinel: use redis:// for the server itself"),
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
    (
        "^MOVED |^ASK |MovedError|AskError",
        "{where} is one node of a cluster, and another has this run's keys ({text}): the URL of a cluster is "
        "redis+cluster://HOST:PORT",
    ),
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
