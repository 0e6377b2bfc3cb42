"""Actor groups that a run can do without: they start when the cluster has room, and come back when lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from apexrl.launch.ray.cluster import Cluster
from apexrl.launch.ray.group_plan import Plan
from apexrl.launch.ray.ray_slots import ActorGroup
from apexrl.run.status import Level

_LOOK_SECONDS = 2.0  # between looks at what the cluster has room for


class ElasticGroups:
    """Requests resources for all elastic groups, and warns when there are fewer actors than wanted.

    It never waits. Call it at every tick; it costs one call to the cluster in two seconds.

    Args:
        groups: those of actors, in the order of ``plan.slots``.
        bundles: what each wants reserved.
    """

    def __init__(
        self,
        cluster: Cluster,
        plan: Plan,
        groups: Sequence[ActorGroup],
        bundles: Sequence[dict[str, float]],
        tell: Callable[[str, Level], None],
    ) -> None:
        self._cluster = cluster
        self._plan = plan
        self._groups = groups
        self._tell = tell
        self._room: set[int] = set()
        self._bundles = {group.number: bundle for group, bundle in zip(groups, bundles, strict=True) if group.optional}
        self._left: set[int] = set()  # whose resources are not asked for
        self._looked = -1e9
        self._enough = False
        self._most = 0  # actors that were at work at once
        for number, bundle in self._bundles.items():
            cluster.want(number, bundle)  # for as long as the run lasts: a cluster that grows by itself does

    def step(self, now: float) -> None:
        """Look what there is room for, and who is there."""
        if self._plan.most == self._plan.least:
            return
        if now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            self._follow_orders()
            self._room = self._cluster.room()
        self._count()

    def may_begin(self, group: ActorGroup) -> bool:
        """Whether Ray has resources for it, as far as is known, and somebody is to act there."""
        return not group.optional or (group.number in self._room and not group.resting)

    def leave(self, group: ActorGroup) -> None:
        """Do without a group: for good where it is given up, else until its actors are called."""
        self._cluster.give_back(group.number)
        self._room.discard(group.number)
        self._left.add(group.number)

    def _follow_orders(self) -> None:
        """Ask for the resources of groups whose actors are called again, and for none where all of them rest."""
        for group in self._groups:
            if group.resting and group.memory is None and group.number not in self._left:
                self.leave(group)
            elif group.number in self._left and not group.resting and not all(slot.gone for slot in group.slots):
                self._left.remove(group.number)
                self._cluster.want(group.number, self._bundles[group.number])

    def _count(self) -> None:
        """Say when actors come beyond those before, and when fewer are left than the run asked for."""
        count = sum(len(group.slots) for group in self._groups if group.up)
        least, most = self._plan.least, self._plan.most
        if count >= least and not self._enough:
            self._enough = True
            if self._most:
                self._tell(f"{count} actors have resources again, of {least}:{most}", "info")
        elif count < least and self._enough:
            self._enough = False
            self._tell(
                f"{count} actors have resources, fewer than the {least} of --actors {least}:{most}; more begin when "
                "the cluster has room",
                "warning",
            )
        if count > max(self._most, least):
            self._tell(f"{count} actors have resources now, of at most {most}", "info")
        self._most = max(self._most, count)
