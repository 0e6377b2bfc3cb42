"""Settings for known environments: what ``apexrl train NAME`` starts from.

A preset differs from the defaults of ``apexrl.config`` only where it says so.
"""

from __future__ import annotations

from apexrl import agents
from apexrl.config import Config
from apexrl.errors import ConfigError
from apexrl.presets.continuous import CONTINUOUS
from apexrl.presets.discrete import DISCRETE
from apexrl.presets.known import Preset
from apexrl.settings import did_you_mean

__all__ = ["PRESETS", "Preset", "names", "preset", "with_agent"]

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
