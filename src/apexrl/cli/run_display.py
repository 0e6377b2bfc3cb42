"""What the command shows of a run, its error and its exit code. Loads neither PyTorch nor rich until it shows."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from apexrl.cli.exit_codes import FAILED, HELD, INTERRUPTED, OK, USAGE
from apexrl.config.paths import from_here
from apexrl.errors import AgentError, ApexrlError, ConfigError, DatasetError, EnvError, HeldError, SpecError

if TYPE_CHECKING:
    from apexrl.api import Run
    from apexrl.run.log_lines import LogFormat
    from apexrl.run.status import Observer

NOT_UNDERSTOOD = (ConfigError, EnvError, AgentError, SpecError, DatasetError)
"""Errors of what a user wrote: exit code ``USAGE``, unless the run had begun."""


def shown(start: Callable[..., Run], watching: Sequence[Observer], told: Sequence[str], log_format: LogFormat) -> int:
    """Start a run, or a part of one, and show it; prints its folder at the end.

    Args:
        start: called with ``observers`` and ``on_folder``.
        told: what to tell the user first.
    """
    from apexrl.report.live_panel import panel

    path: Path | None = None

    def remember(folder: Path) -> None:
        nonlocal path
        path = folder

    terminal = panel(log_format=log_format)
    for text in told:
        terminal.message(text)
    try:
        run = start(observers=[terminal, *watching], on_folder=remember)
    except ApexrlError as error:
        if log_format == "text":
            complain(str(error))
        else:
            if os.environ.get("APEXRL_TRACEBACK"):
                traceback.print_exc()
            if path is None:  # else the run has told it
                with suppress(OSError, ValueError, SystemExit):
                    terminal.message(str(error), "error")
        if isinstance(error, HeldError):
            return HELD
        return USAGE if path is None and isinstance(error, NOT_UNDERSTOOD) else FAILED
    finally:
        if path is not None and log_format == "text":
            with suppress(OSError, ValueError):  # a closed terminal must not hide how the run ended
                sys.stderr.flush()
                print(from_here(path), flush=True)
    if run.summary.get("not_saved"):
        return FAILED
    return {"interrupted": INTERRUPTED, "error": FAILED}.get(run.summary["stopped_by"], OK)


def complain(text: str) -> None:
    """An error for a human, on stderr: no traceback, unless APEXRL_TRACEBACK is set."""
    with suppress(OSError, SystemExit):  # rich exits where nobody reads
        _print_error(text)


def _print_error(text: str) -> None:
    if os.environ.get("APEXRL_TRACEBACK"):
        traceback.print_exc()
    try:
        from rich.console import Console
        from rich.text import Text
    except ModuleNotFoundError:
        print(f"apexrl: {text}", file=sys.stderr)
        return
    message = Text.assemble(("apexrl: ", "bold red"), text)
    Console(stderr=True, soft_wrap=True, highlight=False).print(message)
