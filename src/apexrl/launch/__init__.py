"""Launching: from a configuration to a run. The only starter of processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from apexrl.config import Config
    from apexrl.status import Observer

__all__ = ["launch"]


def launch(
    config: Config,
    observers: Sequence[Observer] = (),
    resume: Path | None = None,
    env: Callable[..., Any] | None = None,
) -> dict[str, Any]:
    """Run ``config`` to its end and return the summary, which is also in the run folder.

    Args:
        config: what to run; ``config.serial`` decides whether in this process or in many.
        observers: told of everything, from this thread.
        resume: the folder of a run to go on with: counters, weights, optimizer, RNG, and the replay when it was saved.
        env: makes the environment, in place of ``config.env.env``.

    Raises:
        ConfigError: a setting makes no sense.
        EnvError: the environment cannot be made.
        WorkerError: a role failed more often than it may.
        NonFiniteError: a loss, a gradient or weights became NaN or infinite.

        In all cases no process is left behind; once the run folder exists, so does its summary.
    """
    from apexrl.launch.supervisor import Interrupts

    began = time.monotonic()
    if env is not None:
        config = replace(config, env=replace(config.env, env=env))
    with Interrupts() as interrupts:
        from apexrl.launch import runs

        launcher = runs.serial if config.serial else runs.processes
        return launcher(config, observers, resume, interrupts, began)
