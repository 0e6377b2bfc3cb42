"""Facts of an environment before a run: its spaces, its time limit, and how long a step takes.

The environment is made in a process of its own, so that one that hangs or crashes harms nobody; with ``--serial`` here.
"""

from __future__ import annotations

import socket
import time
import traceback
from contextlib import closing
from typing import Any

from apexrl.agents.env_facts import EnvFacts
from apexrl.config import Config
from apexrl.errors import EnvError, SpecError, WorkerError
from apexrl.launch.interrupts import Interrupts
from apexrl.launch.probe import revive
from apexrl.launch.supervisor import Supervisor
from apexrl.links.local import worker_messages
from apexrl.run.spec_json import spec_from_json, spec_to_json

MEASURED_SECONDS = 1.0
"""Of steps, when their speed is measured."""

_SLOWEST_SECONDS = 10.0
"""After which a measurement is given up, beside twice the time of making the environment."""

_PRELOAD = ("gymnasium", "apexrl.envs", "apexrl.launch.env_look")


def env_facts(config: Config, measure: bool) -> EnvFacts:
    """What is known of the environment of ``config``.

    Args:
        config: its environment, ``env_timeout``, ``serial`` and seed count.
        measure: steps it, to know how long a step takes; a failure of that leaves the time unknown.

    Raises:
        EnvError: it cannot be made, or takes longer than ``env_timeout``.
        SpecError: one of its spaces is not supported, or larger than a run's record may say.
    """
    if config.serial:
        return _looked(config)._replace(step_seconds=_measured(config, MEASURED_SECONDS) if measure else None)
    with Interrupts() as interrupts, closing(Supervisor(config, interrupts, _PRELOAD)) as supervisor:
        began = time.monotonic()
        seen = _values(supervisor.answers.of(_look_work, (config,)))
        most = min(config.actor.env_timeout, _SLOWEST_SECONDS + 2.0 * (time.monotonic() - began))
        try:
            facts = EnvFacts(spec_from_json(seen["spec"]), seen["time_limit"])
        except ValueError as error:
            from apexrl.envs import env_name

            raise SpecError(f"environment {env_name(config.env)} is larger than a run can be: {error}") from None
        if not measure:
            return facts
        try:  # in another process, which it may end or stop
            speed = supervisor.answers.within(most, _measure_work, (config, MEASURED_SECONDS))
            return facts if speed is None else facts._replace(step_seconds=_values(speed)["seconds"])
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
    worker_messages.send(channel, "facts", {"spec": spec_to_json(facts.spec), "time_limit": facts.time_limit})
    return 0


def _measure_work(channel: socket.socket, config: Config, seconds: float) -> int:
    worker_messages.send(channel, "speed", {"seconds": _measured(config, seconds)})
    return 0


def _looked(config: Config) -> EnvFacts:
    from apexrl.envs import env_spec_and_limit

    return EnvFacts(*env_spec_and_limit(config.env))


def _measured(config: Config, seconds: float) -> float | None:
    """Seconds of one step with random actions, resets included, without those in which other work had the core; None
    where the environment raises an error."""
    from apexrl.envs.make import single_env
    from apexrl.envs.step_cost import RandomSteps, moment

    try:
        with single_env(config.env) as env:
            going = RandomSteps(env, config.seed % 2**32)
            steps, began = 0, moment()
            while time.perf_counter() - began.clock < seconds or not steps:
                going.step()
                steps += 1
            now = moment()
    except (Exception, SystemExit):  # the run will say what is wrong with it, or restart it
        return None
    return began.own_until(now) / steps
