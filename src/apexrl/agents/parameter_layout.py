"""Where an agent's named weights lie among its flat vectors, for parameter servers that own a part of these."""

from __future__ import annotations

from typing import Any

from apexrl.agents.named_vectors import networks
from apexrl.errors import AgentError
from apexrl.protocols import Place


def places(agent: Any) -> dict[str, Place]:
    """The name of each of ``agent.weights()`` -> where it lies.

    Empty where gradients alone do not make the agent what it is, so that parameter servers cannot train it: it does not
    name its networks, it publishes more than they hold, or they keep running statistics of what they see (CrossQ), or
    an update scales whole vectors of weights (SimbaV2).
    """
    try:
        trained = networks(agent)
    except AgentError:
        return {}
    found: dict[str, Place] = {}
    for group, network in trained.items():
        if not network.by_slices or any(buffer.is_floating_point() for buffer in network.network.buffers()):
            return {}
        vector = network.parameters.vector
        views = network.parameters.split(vector).values()
        for name, view in zip(network.weights(), views, strict=True):
            found[name] = Place(group, int(view.storage_offset() - vector.storage_offset()), tuple(view.shape))
    return found if found.keys() == agent.weights().keys() else {}
