"""Facts of an environment before a run: its spaces, its time limit, and how long a step takes.

The environment is made in a process of its own, so that one that hangs or crashes harms nobody; with ``--serial`` here.
"""

from __future__ import annotations

import socket
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from typing import Any

import gymnasium as gym
import numpy as np

from apexrl.agents.env_facts import EnvFacts, byte_fields
from apexrl.config import Config
from apexrl.errors import EnvError, SpecError, WorkerError
from apexrl.launch.interrupts import Interrupts
from apexrl.launch.probe import revive
from apexrl.launch.supervisor import Supervisor
from apexrl.links.local import worker_messages
from apexrl.run.spec_json import spec_from_json, spec_to_json

MEASURED_SECONDS = 1.0
"""Of steps, when their speed is measured or bytes are looked at."""

_LOOKED_AT_STEPS = 500
"""Of which bytes are looked at: as many on all machines, where a step takes less than 2 ms."""

_SEED = 0
"""Of the steps: all seeds of a study are to have the same settings."""

_SLOWEST_SECONDS = 10.0
"""After which a measurement is given up, beside twice the time of making the environment."""

_PRELOAD = ("gymnasium", "apexrl.envs", "apexrl.launch.env_look")


def env_facts(config: Config, measure: bool) -> EnvFacts:
    """What is known of the environment of ``config``.

    Args:
        config: its environment, ``env_timeout``, ``serial`` and seed count.
        measure: steps it, to know how long a step takes; a failure of that leaves the time unknown. Where it shows
            bytes and no large image it is stepped in any case, to know how large these become.

    Raises:
        EnvError: it cannot be made, or takes longer than ``env_timeout``.
        SpecError: one of its spaces is not supported, or larger than a run's record may say.
    """
    if config.serial:
        facts = _looked(config)
        wanted = measure or facts.shows_small_bytes
        return _with_steps(facts, _stepped(config, measure), measure) if wanted else facts
    with Interrupts() as interrupts, closing(Supervisor(config, interrupts, _PRELOAD)) as supervisor:
        began = time.monotonic()
        seen = _values(supervisor.answers.of(_look_work, (config,)))
        most = min(config.actor.env_timeout, _SLOWEST_SECONDS + 2.0 * (time.monotonic() - began))
        try:
            facts = EnvFacts(spec_from_json(seen["spec"]), seen["time_limit"], shrinks=seen["shrinks"])
        except ValueError as error:
            from apexrl.envs import env_name

            raise SpecError(f"environment {env_name(config.env)} is larger than a run can be: {error}") from None
        if not measure and not facts.shows_small_bytes:
            return facts
        try:  # in another process, which it may end or stop
            stepped = supervisor.answers.within(most, _step_work, (config, measure))
            return facts if stepped is None else _with_steps(facts, _values(stepped), measure)
        except (EnvError, WorkerError):
            return facts


def _values(message: worker_messages.Message) -> dict[str, Any]:
    """What a process found; its error is raised here."""
    if message.kind == "error":
        raise revive(message.values["kind"], message.values["error"], message.values["traceback"])
    return message.values


def _look_work(channel: socket.socket, config: Config) -> int:
    try:
        facts = _looked(config)
    except Exception as error:
        text = traceback.format_exc()[-32_000:]
        worker_messages.send(channel, "error", {"kind": type(error).__name__, "error": str(error), "traceback": text})
        return 1
    values = {"spec": spec_to_json(facts.spec), "time_limit": facts.time_limit, "shrinks": facts.shrinks}
    worker_messages.send(channel, "facts", values)
    return 0


def _step_work(channel: socket.socket, config: Config, timed: bool) -> int:
    worker_messages.send(channel, "steps", _stepped(config, timed))
    return 0


def _with_steps(facts: EnvFacts, stepped: dict[str, Any], timed: bool) -> EnvFacts:
    return facts._replace(step_seconds=stepped["seconds"] if timed else None, largest_byte=stepped["largest_byte"])


def _looked(config: Config) -> EnvFacts:
    from apexrl.envs import env_spec_and_limit
    from apexrl.envs.make import shrinks_images

    return EnvFacts(*env_spec_and_limit(config.env), shrinks=shrinks_images(config.env))


def _stepped(config: Config, timed: bool) -> dict[str, Any]:
    """``seconds`` of one step with random actions, resets included, without those in which other work had the core;
    ``largest_byte`` of the first steps. None and 0 where the environment raises an error.

    Args:
        timed: go on for ``MEASURED_SECONDS``; else that is the longest.
    """
    from apexrl.envs.make import single_env
    from apexrl.envs.step_cost import RandomSteps
    from apexrl.shared.thread_seconds import moment

    try:
        with single_env(config.env) as env:
            going, largest_of = RandomSteps(env, _SEED), _largest_byte(env)
            steps, largest, began = 0, largest_of(going.seen), moment()
            while not steps or (
                time.perf_counter() - began.clock < MEASURED_SECONDS and (timed or steps < _LOOKED_AT_STEPS)
            ):
                going.step()
                steps += 1
                if steps <= _LOOKED_AT_STEPS:
                    largest = max(largest, largest_of(going.seen))
            now = moment()
    except (Exception, SystemExit):  # the run will say what is wrong with it, or restart it
        return {"seconds": None, "largest_byte": 0}
    return {"seconds": began.own_until(now) / steps, "largest_byte": largest}


def _largest_byte(env: gym.Env[Any, Any]) -> Callable[[Any], int]:
    """Of an observation's images and vectors of bytes, as whatever array or list it shows them; 0: it has none."""
    from apexrl.envs.spaces import LIMIT, observation_leaves, spec_of

    leaves = observation_leaves(env.observation_space, LIMIT)
    names = byte_fields(spec_of(leaves, env.action_space))
    bytes_of = [leaf.of for leaf in leaves if leaf.name in names]
    return lambda seen: max((int(np.max(of(seen))) for of in bytes_of), default=0)
