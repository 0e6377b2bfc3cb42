"""The link of learners that make every update together, and checks of what they cannot do."""

from __future__ import annotations

from typing import Any

from apexrl.config import Config
from apexrl.errors import AgentError, ConfigError
from apexrl.links.averaging.gradient_averaging import GradientAveraging
from apexrl.topologies.program import Link, Probe, Program

_PACES = 2.0  # of --updates-per-second, for which learners wait for each other at least


def averaging(program: Program, config: Config, probe: Probe, **record: Any) -> Link:
    """Through which ``config.wiring.learners`` average their gradients (``roles.sync_group``).

    Args:
        record: where learners of other hosts take part: ``record`` and ``first`` of ``GradientAveraging``.

    Raises:
        ConfigError, AgentError: they cannot do so; the message names the setting, or what the agent lacks.
    """
    check(config, probe)
    pace = config.learner.updates_per_second
    patience = max(config.wiring.averaging_timeout, _PACES / pace if pace else 0.0)
    sums = {
        "compression": config.wiring.gradient_compression,
        "share": config.wiring.gradient_share,
        "transport": config.wiring.averaging_transport,
    }
    return program.link(GradientAveraging, members=config.wiring.learners, patience=patience, **sums, **record)


def check(config: Config, probe: Probe) -> None:
    """Refuse what several learners cannot do together.

    Raises:
        ConfigError, AgentError: the message names the setting, or what the agent lacks.
    """
    agent = config.agent
    if agent.anneal:
        raise ConfigError(
            "several --learners make steps of one size, and with --anneal each would look for itself how far the run "
            "is: set --no-anneal, or --learners 1"
        )
    if agent.reset_period_updates or agent.anneal_horizon:
        raise ConfigError(
            "several --learners would each reset to weights of their own, and learn with one n and γ: set "
            "--reset-period-updates 0 --no-anneal-horizon, or --learners 1"
        )
    missing = [name for name in ("gradients", "apply", "networks") if name not in probe.offers]
    if missing or not probe.vectors:
        lacks = ", ".join(missing) or "vectors that can be shared"
        raise AgentError(f"several --learners need an agent whose update can be split: {agent.agent} lacks {lacks}")
    if not probe.places:
        raise AgentError(
            f"several --learners average gradients, and agent {agent.agent} is made of more than these (running "
            "statistics, weights scaled after an update, or such as none of its `networks` holds): use --learners 1"
        )
