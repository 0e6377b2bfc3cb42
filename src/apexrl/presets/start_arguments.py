"""What a run starts from, by the arguments of ``train``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from apexrl.config import Config, convert
from apexrl.errors import ConfigError
from apexrl.presets import preset, unseen, with_names


def start_of(
    config: Config | str, overrides: Mapping[str, Any], placed: Sequence[str], tell: Callable[[str], None]
) -> Config:
    """What ``overrides`` are applied to, with the topology and the agent that they name.

    Args:
        placed: arguments that place the run on other machines.
        tell: called with what a user should know of the choice.
    """
    topology, agent = overrides.get("topology", ""), overrides.get("agent", "")
    if not isinstance(agent, str):
        raise ConfigError(f"agent= is a name, not {agent!r}; your own: 'package.module:Class'")
    if not isinstance(topology, str):
        raise ConfigError(f"topology= is a name, not {topology!r}")
    if config == "":
        known = convert.known_settings()
        look = convert.override(Config(), {name: overrides[name] for name in unseen.LOOKED_AT if name in overrides})
        recipe = known["recipe"][1].converted(overrides.get("recipe", "default"))
        start = unseen.start(look, agent, topology, recipe, [*overrides, *placed])
        for line in start.said.splitlines():
            tell(line)
        return start.config
    if "recipe" in overrides:
        raise ConfigError("recipe= is for a run without a preset or a Config, which have their settings")
    config = preset(config).config if isinstance(config, str) else config
    if config.preset or config.recipe == "none" or not (agent or topology):
        return with_names(config, topology, agent)
    return unseen.switched(config, agent, topology)
