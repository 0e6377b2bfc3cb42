"""The links of topologies with parameter servers."""

from __future__ import annotations

import math
from typing import Any

from apexrl.config import Config
from apexrl.errors import ConfigError
from apexrl.links.local.gradient_ring import GradientLink
from apexrl.links.local.parameter_slices import ParameterSlices
from apexrl.links.local.sharded_parameters import ShardedParameters
from apexrl.topologies.program import Link, Probe, Program, WeightsLink


def sharded(program: Program, config: Config, probe: Probe, senders: int) -> dict[str, Any]:
    """The ports ``parameters`` and ``gradients`` of ``parameter_servers`` servers, and of ``senders`` who send to them.

    Raises:
        ConfigError: there are more servers than slices, or step sizes are to fall, of which servers know nothing.
    """
    if config.agent.anneal:
        raise ConfigError("--anneal cannot go with parameter servers, which make steps of one size: set --no-anneal")
    shards = ParameterSlices(probe.vectors, probe.places, config.wiring.parameter_servers)
    return {
        "parameters": program.link(ShardedParameters, shards=shards),
        "gradients": program.link(GradientLink, shards=shards, senders=senders),
    }


def board(port: WeightsLink | Link) -> WeightsLink | None:
    """A weights board for those who read whole weights from ``port`` and are elsewhere; None: there are none in it."""
    if isinstance(port, WeightsLink):
        return WeightsLink(port.nbytes)
    if port.make is ShardedParameters:
        places = port.options["shards"].places.values()
        return WeightsLink(4 * sum(math.prod(shape) for _, _, shape in places))
    return None
