"""The end of a wait."""

from __future__ import annotations

import time

from apexrl.errors import ConfigError


def deadline_after(timeout: float) -> float:
    """The second of ``time.monotonic`` that is ``timeout`` seconds away.

    Raises:
        ConfigError: ``timeout`` is no number, which would be no end.
    """
    try:
        end = time.monotonic() + timeout
    except TypeError:
        raise ConfigError(f"timeout= must be seconds, not {timeout!r}") from None
    if end != end:
        raise ConfigError("timeout= must be seconds, not NaN")
    return end
