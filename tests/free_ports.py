"""Ports for servers that tests bind later, or bind again."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

_PORTS = range(20_000, 32_000)  # below those that Linux gives to whoever binds 0 or connects (32768 and on)


def free_port() -> int:
    """A port of this machine that nobody has, and that no other process is given by chance before it is bound."""
    entropy = random.SystemRandom()  # a seeded one would find the same ports in every process of a test run
    for _ in range(1000):
        port = entropy.choice(_PORTS)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"no port from {_PORTS[0]} to {_PORTS[-1]} is free")
