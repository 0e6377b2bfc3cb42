"""An agent's parameters and optimizer state as flat named vectors, which may lie in shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apexrl.agents.trained_agent import refresh
from apexrl.agents.trained_network import Trained
from apexrl.errors import AgentError, SpecError
from apexrl.protocols import is_optimizer_state

Vectors = dict[str, NDArray[np.float32]]
"""``<group>/online``, ``<group>/target``, ``<group>/optimizer/<name>``: float32 [size]; and the optimizer's updates,
``<group>/optimizer/steps``: float32 [1]."""


def networks(agent: Any) -> dict[str, Trained[Any]]:
    """Name of a group of gradients -> the network that ``apply`` changes by it.

    Raises:
        AgentError: the agent does not say.
    """
    found = getattr(agent, "networks", None)
    if not isinstance(found, dict) or not all(isinstance(network, Trained) for network in found.values()):
        raise AgentError(
            f"agent {type(agent).__name__} cannot share its parameters between processes: it has no `networks`, a dict "
            "from every group that its gradients() returns to the apexrl.agents.trained_network.Trained "
            "that apply() changes. Give it one, or choose a topology with one learner, such as apex or impala"
        )
    return found


def vectors(agent: Any) -> Vectors:
    """All that an update changes, as it is now and as it will be: the arrays are the agent's own memory.

    Raises:
        AgentError: the agent does not name its networks, or they are on another device than the CPU.
    """
    return {name: vector.numpy() for name, vector in _vectors(agent).items()}


def sizes(agent: Any) -> dict[str, int]:
    """How large the vectors are: name -> float32 values. Empty for an agent that does not name its networks."""
    try:
        return {name: vector.numel() for name, vector in _vectors(agent).items()}
    except AgentError:
        return {}


def bind(agent: Any, arrays: Mapping[str, NDArray[np.float32]], statistics: bool = True) -> None:
    """From now on ``arrays`` ARE the agent's parameters, with the values that they hold: its updates change them in
    place, and it sees what others change.

    Args:
        arrays: those that ``vectors`` names.
        statistics: also the optimizers' state; without, the agent keeps its own.

    Raises:
        AgentError: as ``vectors``.
        SpecError: an array is missing, or of another size; nothing was bound.
    """
    own = {name: vector for name, vector in _vectors(agent).items() if statistics or not is_optimizer_state(name)}
    for name, vector in own.items():
        if name not in arrays:
            raise SpecError(f"there is no shared vector {name!r} for agent {type(agent).__name__}")
        if arrays[name].shape != tuple(vector.shape) or arrays[name].dtype != np.float32:
            raise SpecError(
                f"shared vector {name!r} is {arrays[name].dtype} {arrays[name].shape}, and the agent's float32 "
                f"{tuple(vector.shape)}"
            )
    for group, network in networks(agent).items():
        parts = [name for name in own if name.startswith(f"{group}/")]
        network.bind({name.removeprefix(f"{group}/"): torch.from_numpy(arrays[name]) for name in parts})
    refresh(agent)


def share(agent: Any, owner: Any, statistics: bool) -> None:
    """From now on ``agent`` and ``owner``, two of one class in one process, have the same parameters, on whatever
    device they are: an update of either is the other's too.

    Args:
        statistics: also the optimizers' state; without, ``agent`` shall make no updates.

    Raises:
        AgentError: the agent does not name its networks.
    """
    owners = networks(owner)
    for group, network in networks(agent).items():
        theirs = owners[group]
        network.bind(theirs.vectors() if statistics else {"online": theirs.parameters.vector})
    refresh(agent)


def _vectors(agent: Any) -> dict[str, Tensor]:
    found = {
        f"{group}/{name}": vector
        for group, network in networks(agent).items()
        for name, vector in network.vectors().items()
    }
    elsewhere = next((vector.device for vector in found.values() if vector.device.type != "cpu"), None)
    if elsewhere is not None:
        raise AgentError(f"parameters are shared between processes in the CPU's memory, and these are on {elsewhere}")
    return found
