"""The first steps of an environment, tried before a run: one that fails there is said before workers are restarted."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Final

import numpy as np

from apexrl.config import Config
from apexrl.errors import ApexrlError, EnvError
from apexrl.launch.probe import revive
from apexrl.launch.supervisor import Supervisor
from apexrl.launch.worker_process import describe
from apexrl.links.local import worker_messages
from apexrl.run.callback_observer import CallbackObserver
from apexrl.run.folder import env_name
from apexrl.run.status import Observer

_STEPS: Final = 3
_TRIES: Final = 3
"""Environments that must fail, as of one that fails now and then a run survives a failure."""
_MOST_SECONDS: Final = 5.0
"""Of all tries, after which it is left to the workers."""


def try_first_steps(supervisor: Supervisor, config: Config, observers: Sequence[Observer]) -> None:
    """Step the environment in a process of its own. Nothing is tried where a callback may change its settings first.

    Raises:
        ApexrlError: it fails each time, as an ``EnvError`` or whatever was wrong, under its own class.
    """
    if any(isinstance(observer, CallbackObserver) for observer in observers):
        return
    ends = time.monotonic() + _MOST_SECONDS
    failure: ApexrlError | None = None
    for _ in range(_TRIES):
        left = ends - time.monotonic()
        try:
            answer = supervisor.answers.within(left, _work, (config,), "the first steps of the environment")
        except EnvError as error:  # they ended the process
            failure = error
            continue
        if answer is None or answer.kind != "error":
            return
        failure = revive(answer.values["kind"], answer.values["error"], "")
    assert failure is not None
    raise failure


def _work(channel: socket.socket, config: Config) -> int:
    try:
        _step(config)
    except (Exception, SystemExit) as error:
        known = isinstance(error, ApexrlError)
        said = describe(error)["traceback"]  # of ours with lines of its own code
        text = said.partition(": ")[2] if known else f"the first steps of {env_name(config)} failed\n{said}"
        kind = type(error).__name__ if known else EnvError.__name__
        worker_messages.send(channel, "error", {"kind": kind, "error": text})
        return 1
    worker_messages.send(channel, "stepped", {})
    return 0


def _step(config: Config) -> None:
    """Reset an environment, and make some steps of random actions."""
    from apexrl.envs import make_vector
    from apexrl.envs.players import random_actions

    with closing(make_vector(config.env, 1, config.seed)) as env:
        rng = np.random.default_rng(config.seed)
        seen = env.reset()
        for _ in range(_STEPS):
            seen = env.step(random_actions(rng, env.spec, seen, env.num_envs)).observation
