"""Prints what a command has done, a line at a time."""

from __future__ import annotations

from rich.console import Console


class Say:
    """Prints a line as it is; returns the exit code that goes with it."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()

    def __call__(self, text: str, code: int = 0) -> int:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        return code
