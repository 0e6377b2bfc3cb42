"""Prints a picture again and again, in place on a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from rich.console import Console, RenderableType
from rich.live import Live

TERMINAL_SECONDS: Final = 1.0
LOG_SECONDS: Final = 5.0
"""Between two pictures where there is no terminal to redraw."""


def redraw(console: Console, picture: Callable[[], tuple[RenderableType, float | None]]) -> None:
    """Print pictures until Ctrl-C; with each comes its seconds until the next (None: the usual)."""
    live = Live(console=console, auto_refresh=False) if console.is_terminal and not console.is_dumb_terminal else None
    try:
        if live is not None:
            live.start()
        while True:
            drawn, pause = picture()
            if live is not None:
                live.update(drawn, refresh=True)
            else:
                console.print(drawn)
            time.sleep(pause if pause is not None else LOG_SECONDS if live is None else TERMINAL_SECONDS)
    except KeyboardInterrupt:
        return
    finally:
        if live is not None:
            live.stop()
