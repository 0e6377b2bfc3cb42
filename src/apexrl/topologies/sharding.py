"""Parameter servers and what connects them: what the pages have in common whose gradients travel."""

from __future__ import annotations

from typing import Any

from apexrl.config import Config
from apexrl.errors import AgentError
from apexrl.links.gradients import GradientLink
from apexrl.links.sharded_parameters import ShardedParameters
from apexrl.links.shards import Shards
from apexrl.topologies.program import Probe, Program


def sharded(program: Program, config: Config, probe: Probe, senders: int) -> dict[str, Any]:
    """The ports ``parameters`` and ``gradients`` of ``parameter_servers`` servers, and of ``senders`` who send to them.

    Raises:
        AgentError: more than gradients makes this agent what it is.
        ConfigError: there are more servers than slices.
    """
    if not probe.places:
        raise AgentError(
            f"topology {config.topology} cannot run agent {config.agent.agent}: parameter servers change it by "
            "gradients alone, and it has running statistics, or weights that none of its `networks` holds. Choose "
            "another --agent, or --topology apex"
        )
    shards = Shards(probe.vectors, probe.places, config.wiring.parameter_servers)
    return {
        "parameters": program.link(ShardedParameters, shards=shards),
        "gradients": program.link(GradientLink, shards=shards, senders=senders),
    }
