"""Runs of trials as tasks of a Ray cluster, whose nodes share the study's folder."""

from __future__ import annotations

from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import msgspec
import ray

from apexrl.config.convert import from_toml
from apexrl.errors import ConfigError
from apexrl.sweep.run_process import INTERRUPTED, Request, carry_out

_KILLED = -9


def connect(address: str) -> None:
    """Join the cluster at ``address``, as in ``--ray`` of ``apexrl train``.

    Raises:
        ConfigError: there is none.
    """
    where: dict[str, Any] = {} if address == "local" else {"address": address}
    try:
        ray.init(**where, log_to_driver=False, include_dashboard=False if address == "local" else None)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(f"--ray {address}: there is no Ray cluster to join ({error})") from error


class RayRun:
    """A run on a node of the cluster, in one task with the processors of its actors and its learner.

    Args:
        log_path: what it prints is appended there.
    """

    def __init__(self, wanted: Request, log_path: Path) -> None:
        actors = from_toml(wanted.config).actor.actors
        task = ray.remote(num_cpus=actors + 1, max_retries=0)(_carry_out)
        self._task = task.remote(msgspec.json.encode(wanted), str(log_path))
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None and ray.wait([self._task], timeout=0)[0]:
            try:
                self._code = int(ray.get(self._task))
            except ray.exceptions.TaskCancelledError:
                self._code = INTERRUPTED
            except ray.exceptions.RayError:  # its node is lost, or its process was killed
                self._code = _KILLED
        return self._code

    def interrupt(self) -> None:
        """A task that has not begun is taken back; a run gets what Ctrl-C is elsewhere."""
        ray.cancel(self._task, force=False)

    def kill(self) -> None:
        ray.cancel(self._task, force=True)
        self._code = _KILLED


def _carry_out(encoded: bytes, log_path: str) -> int:
    with Path(log_path).open("a", encoding="utf-8", buffering=1) as log, redirect_stdout(log), redirect_stderr(log):
        return carry_out(msgspec.json.decode(encoded, type=Request))
