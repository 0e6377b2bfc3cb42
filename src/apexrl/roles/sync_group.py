"""A learner in a sync group: several learners make every update together, each from its own batch (IMPALA, Ape-X)."""

from __future__ import annotations

from collections.abc import Generator, ItemsView, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from apexrl.protocols import Context, Learned

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from apexrl.agents.trained_network import Gradients
    from apexrl.links.local.gradient_averaging import GradientAveraging

    Steps: TypeAlias = Generator[Gradients, Mapping[str, Tensor], Learned]


class SyncGroup:
    """Makes updates of several learners together: their gradients are averaged, clipped and applied.

    All have the same parameters and optimizers at every update, to the last bit. A learner that begins anew makes all
    of them begin anew, with the state of the first: its newest checkpoint, when it is the first that died. An update
    that was under way is made once more from the same batch. Where an agent makes several gradient steps of a batch
    (``steps``), each is averaged; those that were made of an update under way stay.

    Args:
        context: its index is the learner's place.
        agent: with ``networks``, ``gradients`` and ``apply``.
        link: to the others.
        version: of the first update, as far as this learner knows; the first learner's holds.
    """

    def __init__(self, context: Context, agent: Any, link: GradientAveraging, version: int) -> None:
        from apexrl.links.local.gradient_averaging import LEADER

        self._agent = agent
        for network in agent.networks.values():
            network.averages = True
        self._patience = context.patience
        self._leads = context.index == LEADER
        self._member = link.member(context.index)
        self._version = version
        self._steps: Steps | None = None  # of the update that is under way
        self._offered: list[str] = []  # groups of the gradient that is with the others
        self.made_at = version
        """Version of the newest update."""

    def update(self, prepared: Any) -> Learned | None:
        """One update with all others. None: they are still at theirs; call again with the same batch.

        Raises:
            NonFiniteError: this learner's gradient is NaN or infinite; parameters are as before this gradient step.
        """
        if not self._member.joined:
            self._steps = None
            if not self._join():
                return None
        if self._steps is None:
            begin = getattr(self._agent, "steps", None)
            self._steps = _one_step(self._agent, prepared) if begin is None else begin(prepared)
            self._offer(next(self._steps))
        while True:
            mean = self._member.mean(self._patience)
            if mean is None:
                return None
            try:
                self._offer(self._steps.send(self._parts(mean)))
            except StopIteration as end:
                learned: Learned = end.value
                break
        self._steps = None
        self.made_at, self._version = self._version, self._version + 1
        return learned

    def _offer(self, gradients: Gradients) -> None:
        """Some updates change some networks only, and the same ones everywhere: the others' places are zeros."""
        own = gradients.groups
        self._offered = list(own)
        none = {
            name: network.gradient.new_zeros(network.gradient.shape)
            for name, network in self._networks
            if name not in own
        }
        self._member.offer(_flat([(own | none)[name] for name, _ in self._networks]))

    def _parts(self, mean: NDArray[np.float32]) -> dict[str, Tensor]:
        """A gradient by the names of its groups again."""
        import torch

        gradient, parts, start = torch.from_numpy(mean), {}, 0
        for name, network in self._networks:
            live = network.gradient
            if name in self._offered:
                parts[name] = network.clip_average(gradient[start : start + live.numel()].to(live.device))
            start += live.numel()
        return parts

    def _join(self) -> bool:
        """Give, or take, the state that all begin with. False: not all are here yet."""
        import torch

        from apexrl.agents.trained_agent import refresh

        if not self._member.gathered(self._patience):
            return False
        if self._leads:
            self._member.give(_flat(self._vectors()), self._version, getattr(self._agent, "updates", 0))
            return True
        found = self._member.take(self._patience)
        if found is None:
            return False
        state, self._version, updates = torch.from_numpy(found[0]), *found[1:]
        start = 0
        with torch.no_grad():
            for vector in self._vectors():
                vector.copy_(state[start : start + vector.numel()].view_as(vector))
                start += vector.numel()
        refresh(self._agent)
        if hasattr(self._agent, "updates"):  # targets and rare steps go by it
            self._agent.updates = updates
        return True

    @property
    def _networks(self) -> ItemsView[str, Any]:
        networks: dict[str, Any] = self._agent.networks
        return networks.items()

    def _vectors(self) -> list[Tensor]:
        return [vector for _, network in self._networks for vector in network.vectors().values()]


def _one_step(agent: Any, prepared: Any) -> Steps:
    """An update of one gradient step, as ``Agent.steps`` would have it."""
    gradients = agent.gradients(prepared)
    agent.apply((yield gradients))
    return Learned(gradients.priorities, gradients.metrics)


def _flat(vectors: list[Tensor]) -> Any:
    """Some vectors as one on the host, float32."""
    import torch

    # some optimizers count their steps on the CPU, whatever the device of the rest
    return torch.cat([vector.detach().reshape(-1).cpu() for vector in vectors]).numpy()
