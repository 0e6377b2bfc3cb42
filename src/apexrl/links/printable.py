"""Texts from other hosts made safe for a terminal, and this machine's name."""

from __future__ import annotations

import os


def printable(text: str | bytes | None, most: int = 80) -> str:
    """``text`` as one line without control characters, at most ``most`` characters."""
    words = text.decode("utf-8", "replace") if isinstance(text, bytes) else text or ""
    return "".join(c if c.isprintable() else "?" for c in words[:most])


def host_name() -> str:
    """This machine's name, for messages."""
    return printable(os.uname().nodename, 64) or "host"
