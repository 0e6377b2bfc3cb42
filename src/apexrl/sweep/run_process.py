"""One run of a trial in a process of its own.

The process ends when its sweep is gone: it reads the other end of a pipe that the sweep holds open. It stops in good
order then, with a checkpoint, and the next sweep resumes it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import msgspec

from apexrl.config import Config
from apexrl.config.convert import from_toml, to_toml
from apexrl.config.trust import entrusted, modules
from apexrl.errors import ApexrlError, HeldError
from apexrl.run.observers import IdleObserver
from apexrl.run.status import RunStatus

PRUNED: Final = "pruned"
"""What a run's summary says of one that its sweep has ended early."""

ENDED, FAILED, HELD, INTERRUPTED = 0, 1, os.EX_TEMPFAIL, 130

_END_SECONDS: Final = 120.0  # after the sweep is gone, for final evaluation and checkpoint


class Request(msgspec.Struct, frozen=True):
    """What to run."""

    config: str
    """As TOML."""
    trust: tuple[str, ...]
    """Modules from which the configuration may name code."""
    stop_path: str
    """When this file exists, the run ends; what it holds becomes the reason."""


class StartedRun(Protocol):
    """A run that goes on elsewhere."""

    def poll(self) -> int | None:
        """None: it goes on; else one of the codes above, or minus the signal that killed it."""

    def interrupt(self) -> None:
        """Ask it to stop, with a checkpoint."""

    def kill(self) -> None: ...


def request(config: Config, stop_path: Path) -> Request:
    return Request(to_toml(config), modules(config, imports=False), str(stop_path))


class RunProcess:
    """A run in a process of this machine.

    Args:
        log_path: what it prints is appended there.
    """

    def __init__(self, wanted: Request, log_path: Path) -> None:
        path = [entry or os.getcwd() for entry in sys.path]
        code = f"import sys; sys.path[:] = {path!r}; from {__name__} import main; sys.exit(main())"
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the sweep, which tells its runs
            )
        self.pid = self._process.pid
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it died at once: poll says how
            self._process.stdin.write(msgspec.json.encode(wanted) + b"\n")
            self._process.stdin.flush()

    def poll(self) -> int | None:
        code = self._process.poll()
        if code is not None and self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        return code

    def interrupt(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(timeout=10.0)
        self.poll()


class StopFile(IdleObserver):
    """Ends a run when a file appears."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def update(self, status: RunStatus) -> str | None:
        try:
            return self._path.read_text(encoding="utf-8") if self._path.exists() else None
        except OSError:
            return None


def carry_out(wanted: Request) -> int:
    """Resume the run, or start it; returns a code as ``StartedRun.poll``."""
    from apexrl import api
    from apexrl.report.run_observers import panels

    config = from_toml(wanted.config, "the sweep's settings")
    config = entrusted(config, wanted.trust, "the sweep's settings")
    observers: Sequence[IdleObserver] = [StopFile(Path(wanted.stop_path))]
    try:
        run = api.run(config, observers=[*panels(True, config.log_format), *observers], resume_or_start=True)
    except KeyboardInterrupt:  # before there was a run
        return INTERRUPTED
    except HeldError as error:
        print(error, file=sys.stderr)
        return HELD
    except ApexrlError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return FAILED
    return {"interrupted": INTERRUPTED, "error": FAILED}.get(run.summary["stopped_by"], ENDED)


def main() -> int:
    wanted = msgspec.json.decode(sys.stdin.buffer.readline(), type=Request)
    threading.Thread(target=_end_with_the_sweep, name="end with the sweep", daemon=True).start()
    return carry_out(wanted)


def _end_with_the_sweep() -> None:
    while os.read(sys.stdin.fileno(), 1):  # until the other end is closed; ``sys.stdin`` would be locked meanwhile
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_END_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
