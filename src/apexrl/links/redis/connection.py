"""A connection to a Redis server that runs scripts and commands, and is opened again after a failure."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError, ResponseError

from apexrl.links.redis.keys import tag_of
from apexrl.links.redis.server import Server, explain

if TYPE_CHECKING:
    from redis import Redis


class Connection:
    """Runs scripts and commands over its own connection, opened at first use and again after a failure; in a cluster
    also for keys of another run.

    Not thread-safe. Every failure of the connection or server is raised as a ``LinkError``.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self._redis: Redis | None = None
        self._tag = ""  # of the keys that the connection is for

    def script(self, text: str, keys: Sequence[str], *arguments: str | bytes | int) -> Any:
        return self.command("EVAL", text, len(keys), *keys, *arguments)

    def command(self, *words: str | bytes | int) -> Any:
        """The reply as the server sent it: bytes, numbers, lists."""
        return self.pipeline([words])[0]

    def pipeline(self, commands: Sequence[Sequence[str | bytes | int]], refusals: bool = False) -> list[Any]:
        """Several commands at once. With ``refusals``, the reply of a refused command is None."""
        try:
            if (key := _key_of(commands)) and tag_of(key) != self._tag:
                self.close()
            if self._redis is None:
                self._redis, self._tag = self.server.connect(key=key), tag_of(key)
            line: Any = self._redis.connection
            line.send_packed_command(line.pack_commands(commands))
            replies = [_reply(line) for _ in commands]
            refused = [reply for reply in replies if isinstance(reply, ResponseError)]
            if refused and not refusals:
                raise refused[0]
        except (RedisError, OSError) as error:
            self.close()
            raise explain(error, self.server.address) from None
        except BaseException:  # Ctrl-C between a command and its reply
            self.close()
            raise
        return [None if isinstance(reply, ResponseError) else reply for reply in replies]

    def own_address(self) -> str:
        """The address of this host's end of the connection; that of the loopback interface if the server is on it."""
        if self._redis is None:
            self.command("PING")
        line: Any = self._redis
        end = line.connection._sock.getsockname()
        return end[0] if isinstance(end, tuple) else "127.0.0.1"

    def close(self) -> None:
        if self._redis is not None:
            with suppress(RedisError, OSError):
                self._redis.close()
            self._redis = None


def _key_of(commands: Sequence[Sequence[str | bytes | int]]) -> str:
    """A key of a run among the words; empty: there is none."""
    words = (word for words in commands for word in words[:5])
    return next((word for word in words if isinstance(word, str) and tag_of(word)), "")


def _reply(line: Any) -> Any:
    try:
        return line.read_response()
    except ResponseError as refused:
        return refused
