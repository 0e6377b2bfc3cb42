"""Settings for known environments: what ``apexrl train NAME`` starts from.

A preset differs from the defaults of ``apexrl.config`` only where it says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from apexrl import agents, topologies
from apexrl.config import Config
from apexrl.config.convert import flat, override
from apexrl.config.settings import did_you_mean
from apexrl.errors import ConfigError
from apexrl.presets.continuous import CONTINUOUS
from apexrl.presets.discrete import DISCRETE
from apexrl.presets.known import Preset

__all__ = ["PRESETS", "Preset", "check_installed", "names", "preset", "with_agent", "with_names", "with_topology"]

PRESETS: dict[str, Preset] = DISCRETE | CONTINUOUS


def names() -> list[str]:
    """Every preset's name, simplest first."""
    return list(PRESETS)


def preset(name: str) -> Preset:
    """A preset by name.

    Raises:
        ConfigError: there is none of that name; the message names the nearest.
    """
    if name not in PRESETS:
        raise ConfigError(
            f"unknown preset {name!r}{did_you_mean(name, PRESETS)}. Presets: {', '.join(PRESETS)}. "
            "For another environment: apexrl train --env ID"
        )
    return PRESETS[name]


def check_installed(config: Config) -> None:
    """Raises ConfigError where the environment of its preset needs an extra that is not installed."""
    known = PRESETS.get(config.preset)
    if known and known.missing and known.config.env.env == config.env.env:
        raise ConfigError(
            f"preset {config.preset} needs an extra that is not installed; run: pip install 'apexrl[{known.extra}]'"
        )


def with_names(config: Config, topology: str = "", agent: str = "") -> Config:
    """``config`` with the topology and the agent of those names; an empty name changes nothing."""
    if topology:
        return with_topology(config, topology, agent)
    return with_agent(config, agent) if agent else config


def with_agent(config: Config, name: str) -> Config:
    """``config`` with agent ``name``: the settings that the name stands for, then those that the preset has for it.

    What the agent before had brought goes back to the preset's ground. Where ``config`` has that agent already, nothing
    changes.

    Raises:
        ConfigError: there is no agent of that name.
    """
    if name == config.agent.agent:
        return config
    known = PRESETS.get(config.preset)
    return agents.with_agent(config, name, known.ground, known.agents) if known else agents.with_agent(config, name)


def with_topology(config: Config, name: str, agent: str = "") -> Config:
    """``config`` in topology ``name``, with ``agent`` or one that the topology runs.

    That is the present one if it does; else one that the preset has settings for, its own first and then the
    topology's; else the topology's.

    Raises:
        ConfigError: there is no topology, or no agent, of that name; or the topology cannot run ``agent``.
    """
    topologies.check_name(name)
    changed: dict[str, Any] = {"topology": name}
    if name != config.topology:
        changed["topology_settings"] = {}
    config = override(_untuned(config), changed)
    if agent:
        config = with_agent(config, agent)
        topologies.check_agent(name, agent)
        return _tuned(config)
    own, known = topologies.info(name).agent, PRESETS.get(config.preset)
    tuned = [known.agent, *sorted(known.agents, key=lambda other: other != own)] if known else []
    choices = (with_agent(config, other) for other in (config.agent.agent, *tuned, own))
    return _tuned(next(choice for choice in choices if not topologies.obstacle(choice)))


def _tuned(config: Config) -> Config:
    """``config`` with what its preset has for its agent in its topology."""
    return override(config, _tuning(config))


def _untuned(config: Config) -> Config:
    """``config`` without that, where it is still as ``_tuned`` has left it."""
    tuning = _tuning(config)
    if not tuning:
        return config
    values = flat(config)
    before = flat(with_agent(PRESETS[config.preset].config, config.agent.agent))
    return override(config, {name: before[name] for name, value in tuning.items() if values[name] == value})


def _tuning(config: Config) -> Mapping[str, Any]:
    known = PRESETS.get(config.preset)
    return known.topologies.get(config.topology, {}).get(config.agent.agent, {}) if known else {}
