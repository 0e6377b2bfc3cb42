"""A learner's client of the parameter servers: loads what they publish into an agent, and sends gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from apexrl.links.local.gradient_ring import GradientLink
from apexrl.links.local.parameter_slices import ONLINE, TARGET, Floats
from apexrl.links.local.sharded_parameters import ShardedParameters

if TYPE_CHECKING:
    from torch import Tensor


class ParameterClient:
    """Pulls before a gradient, pushes after it: DistBelief's downpour (Dean et al. 2012, algorithm 7), with one
    gradient between two pulls.

    Args:
        agent: one that names its ``networks``, on whatever device.
        sender: which of the link's senders this is.
    """

    def __init__(self, agent: Any, parameters: ShardedParameters, gradients: GradientLink, sender: int) -> None:
        from apexrl.agents.named_vectors import networks

        self._agent = agent
        self._networks = networks(agent)
        self._parameters = parameters
        self._sender = gradients.sender(sender)
        self._pulled = {name: (parameters.empty(name), [0] * parameters.shards.count) for name in (ONLINE, TARGET)}
        self._under_way = False

    @property
    def version(self) -> int:
        """Of the parameters that the agent has: that of the slice that is furthest behind; 0: none yet."""
        return min(self._pulled[ONLINE][1])

    @property
    def newest(self) -> int:
        """The version that the servers have published by now."""
        return self._parameters.version

    def pull(self) -> bool:
        """Give the agent the newest parameters and targets. False: some server has not published its first ones."""
        from torch import from_numpy

        from apexrl.agents.trained_agent import refresh

        newer = [name for name, (into, versions) in self._pulled.items() if self._parameters.pull(versions, into, name)]
        for name in newer:
            for group, vector in self._pulled[name][0].items():
                network = self._networks[group]
                own = network.parameters if name == ONLINE else network.target_parameters
                own.vector.copy_(from_numpy(vector))
        if newer:
            refresh(self._agent)
        return self.version > 0

    def send(self, groups: Mapping[str, Tensor], timeout: float) -> bool:
        """Set out to send a gradient of the pulled parameters, which must stay as it is until it is ``sent``. False:
        for ``timeout`` seconds some server took no more; go on with ``finish``."""
        arrays: dict[str, Floats] = {group: gradient.cpu().numpy() for group, gradient in groups.items()}
        self._sender.begin(arrays, self._pulled[ONLINE][1])
        self._under_way = True
        return self.finish(timeout)

    def finish(self, timeout: float) -> bool:
        """Go on sending. False: some server takes no more just now."""
        self._under_way = self._under_way and not self._sender.finish(timeout)
        return not self._under_way

    def settled(self, timeout: float) -> bool:
        """Whether a pull brings what all that was sent has made of the parameters; waits for it up to ``timeout``
        seconds."""
        return self._sender.settled(timeout)

    @property
    def sent(self) -> bool:
        """Whether no gradient is under way."""
        return not self._under_way
