"""Parameter servers and what connects them: what the pages have in common whose gradients travel."""

from __future__ import annotations

from typing import Any

from apexrl.config import Config
from apexrl.errors import ConfigError
from apexrl.links.gradients import GradientLink
from apexrl.links.sharded_parameters import ShardedParameters
from apexrl.links.shards import Shards
from apexrl.topologies.program import Probe, Program


def sharded(program: Program, config: Config, probe: Probe, senders: int) -> dict[str, Any]:
    """The ports ``parameters`` and ``gradients`` of ``parameter_servers`` servers, and of ``senders`` who send to them.

    Raises:
        ConfigError: there are more servers than slices, or step sizes are to fall, of which servers know nothing.
    """
    if config.agent.anneal:
        raise ConfigError("--anneal cannot go with parameter servers, which make steps of one size: set --no-anneal")
    shards = Shards(probe.vectors, probe.places, config.wiring.parameter_servers)
    return {
        "parameters": program.link(ShardedParameters, shards=shards),
        "gradients": program.link(GradientLink, shards=shards, senders=senders),
    }
