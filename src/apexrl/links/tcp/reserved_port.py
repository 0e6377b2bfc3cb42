"""A port of this host that one process holds for another, which may die and listen there again."""

from __future__ import annotations

import socket


class ReservedPort:
    """A TCP port, held until ``close`` by a socket that does not listen. A process of the same user listens there
    with ``Gateway(shared_port=True)``.

    Args:
        host: address of this host.
        port: 0: any free one.

    Raises:
        OSError: something else has the port, or there is no such address here.
    """

    def __init__(self, host: str, port: int = 0) -> None:
        self._socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            self._socket.bind((host, port))
        except OSError:
            self._socket.close()
            raise
        self.address: tuple[str, int] = self._socket.getsockname()[:2]

    def close(self) -> None:
        """Give the port back. May be called again."""
        self._socket.close()
