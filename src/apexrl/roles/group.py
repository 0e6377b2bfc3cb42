"""A learner among several that make every update together, each from its own batch (IMPALA's synchronised learners)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from apexrl.protocols import Context, Learned

if TYPE_CHECKING:
    from torch import Tensor

    from apexrl.links.averaging import Averaging


class Group:
    """What an agent's ``update`` is to one learner, to several: gradients are averaged before they are applied.

    All have the same parameters and optimizers at every update, to the last bit. A learner that begins anew makes all
    of them begin anew, with the state of the first: its newest checkpoint, when it is the first that died. An update
    that was under way is made once more from the same batch.

    Args:
        context: its index is the learner's place.
        agent: with ``networks``, ``gradients`` and ``apply``.
        link: to the others.
        version: of the first update, as far as this learner knows; the first learner's holds.
    """

    def __init__(self, context: Context, agent: Any, link: Averaging, version: int) -> None:
        from apexrl.links.averaging import LEADER

        self._agent = agent
        self._patience = context.patience
        self._leads = context.index == LEADER
        self._member = link.member(context.index)
        self._version = version
        self._under_way: Learned | None = None
        self.made_at = version
        """Version of the newest update."""

    def update(self, prepared: Any) -> Learned | None:
        """One update with all others. None: they are still at theirs; call again with the same batch.

        Raises:
            NonFiniteError: this learner's gradient is NaN or infinite; parameters are as before.
        """
        import torch

        if not self._member.joined:
            self._under_way = None
            if not self._join():
                return None
        if self._under_way is None:
            groups, priorities, metrics = self._agent.gradients(prepared)
            self._member.offer(_flat([groups[name] for name in self._agent.networks]))
            self._under_way = Learned(priorities, metrics)
        mean = self._member.mean(self._patience)
        if mean is None:
            return None
        gradient, parts, start = torch.from_numpy(mean), {}, 0
        for name, network in self._agent.networks.items():
            live = network.gradient
            parts[name] = gradient[start : start + live.numel()].to(live.device)
            start += live.numel()
        self._agent.apply(parts)
        self.made_at, self._version = self._version, self._version + 1
        learned, self._under_way = self._under_way, None
        return learned

    def _join(self) -> bool:
        """Give, or take, the state that all begin with. False: not all are here yet."""
        import torch

        from apexrl.agents.vectors import refresh

        if not self._member.gathered(self._patience):
            return False
        vectors = [vector for network in self._agent.networks.values() for vector in network.vectors().values()]
        if self._leads:
            self._member.give(_flat(vectors), self._version)
            return True
        found = self._member.take(self._patience)
        if found is None:
            return False
        state, self._version = torch.from_numpy(found[0]), found[1]
        start = 0
        with torch.no_grad():
            for vector in vectors:
                vector.copy_(state[start : start + vector.numel()].view_as(vector))
                start += vector.numel()
        refresh(self._agent)
        return True


def _flat(vectors: list[Tensor]) -> Any:
    """Some vectors as one on the host, float32."""
    import torch

    return torch.cat([vector.detach().reshape(-1) for vector in vectors]).cpu().numpy()
