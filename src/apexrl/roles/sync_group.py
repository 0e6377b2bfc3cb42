"""A learner in a sync group: several learners make every update together, each from its own batch (IMPALA, Ape-X)."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from apexrl.links.averaging.gradient_averaging import State
from apexrl.protocols import Context, Learned
from apexrl.roles.gradient_compression import compression
from apexrl.roles.gradient_vector import GradientVector

if TYPE_CHECKING:
    from torch import Tensor

    from apexrl.agents.trained_network import Gradients, Trained
    from apexrl.links.averaging.gradient_averaging import GradientAveraging

    Steps: TypeAlias = Generator[Gradients, Mapping[str, Tensor], Learned]

_ABSTAIN_SECONDS = 0.02, 1.0
"""Without a batch for this long a learner lets the others go on; less and less long where it comes to that again."""
_CALL_SECONDS = 0.01
"""How long who abstains waits for the others' next sum before it looks again whether there is a batch."""
_TAKES_PART, _ENDS, _WANTED, _WORDS = 0, 1, 2, 3
"""Words that are summed with the gradients: 1 of who has a gradient; of who says that the update is over; of who knows
that somebody waits to join."""


class _Round(NamedTuple):
    """What came of one sum."""

    parts: dict[str, Tensor]  # name of a group -> its average
    takers: int  # learners whose gradient is in it
    ends: bool
    wanted: bool


class SyncGroup:
    """Makes updates of several learners together: their gradients are averaged, clipped and applied.

    All have the same parameters and optimizers after every update, to the last bit. When a learner is lost, the others
    make the update that was under way once more, from the same batches. Who begins anew takes the newest state of all.
    Where an agent makes several gradient steps of a batch (``steps``), each is averaged; those that were made of an
    update under way stay. A learner that has no batch abstains: the others' mean is applied to it, too.

    Args:
        context: its index is the learner's place.
        agent: with ``networks``, ``gradients`` and ``apply``.
        version: of the first update, as far as this learner knows; the greatest of all holds.
        progress: updates in the agent's state.
    """

    def __init__(self, context: Context, agent: Any, link: GradientAveraging, version: int, progress: int = 0) -> None:
        from apexrl.links.averaging import sum_plans

        self._agent = agent
        self._networks: dict[str, Trained[Any]] = agent.networks
        for network in self._networks.values():
            network.averages = True
        self._takes_turns = not context.patience
        devices = {network.parameters.vector.device for network in self._networks.values()}
        self._member = link.member(context.index, context.should_stop, *devices if len(devices) == 1 else ())
        self._vector = GradientVector(
            self._networks,
            _WORDS,
            self._member.send,
            sum_plans.CHUNK_FLOATS,
            compression(link.compression, link.share),
            self._member.device,
        )
        self._form = sum_plans.Form(link.compression, self._vector.exact, self._vector.most)
        self._steps: Steps | None = None  # of the update that is under way
        self._gradients: Gradients | None = None  # that the others have yet to average
        self._progress = progress
        self._busy_at, self._idle_seconds = time.monotonic(), _ABSTAIN_SECONDS[1]
        self.abstains = False
        """The newest round with the others was without a batch."""
        self.version = version
        """Of the next update."""
        self.made_at = version
        """Version of the newest update."""
        self.missed = 0
        """Updates that the others made without this learner, since somebody set this to 0."""

    @property
    def joined(self) -> bool:
        """Whether this learner has the state of all: that before update ``version``."""
        return self._member.joined

    def update(self, prepared: Any) -> Learned | None:
        """One update with all others. None: they are still at theirs, or one was lost; call again with the same batch.

        Raises:
            NonFiniteError: this learner's gradient is NaN or infinite; parameters are as before this gradient step.
            SpecError: another learner has other networks.
        """
        if not self.abstains:
            self._idle_seconds = min(1.25 * self._idle_seconds, _ABSTAIN_SECONDS[1])
        self.abstains = False
        if not self._member.joined:
            self._steps = None
            if not self._join():
                return None
        if self._steps is None:
            begin = getattr(self._agent, "steps", None)
            self._steps = _one_step(self._agent, prepared) if begin is None else begin(prepared)
            self._begin_gradient()
            self._gradients = next(self._steps)
        while True:
            made = self._round(self._gradients)
            if made is None:
                return None
            self._begin_gradient()
            try:
                self._gradients = self._steps.send(made.parts)
            except StopIteration as end:
                learned: Learned = end.value
                break
        self._steps = self._gradients = None
        if made.takers < self._member.size and hasattr(self._agent, "steps"):
            self._round(None, ends=True)  # who abstains cannot know how many steps there are
        self._made(made)
        return learned._replace(metrics={**learned.metrics, **self._vector.metrics()}) if learned.metrics else learned

    def abstain(self) -> bool:
        """Where there is no batch: let the others go on, if there was none for long. True: they made an update, which
        this learner's parameters have followed."""
        now = time.monotonic()
        if self._takes_turns or now - self._busy_at < self._idle_seconds:
            return False
        wait = _CALL_SECONDS if self.abstains else 0.0  # else it waits for batches
        if self._member.joined and not (self._member.wanted or self._member.called(wait)):
            return False  # where nobody has a batch, nothing is sent
        if not self.abstains:
            self.abstains = True
            self._idle_seconds = max(0.5 * self._idle_seconds, _ABSTAIN_SECONDS[0])
        if not self._member.joined and not self._join():
            return False
        made, before = self._round(None), self._updates
        if made is None or not made.takers:
            if made is not None and made.wanted:
                self._member.leave()
            return False
        self._agent.apply(made.parts)
        while hasattr(self._agent, "steps"):
            self._updates = before  # it counts gradient steps
            made = self._round(None)
            if made is None:
                return False
            if made.ends:
                self._updates = before + 1
                break
            self._agent.apply(made.parts)
        self._made(made)
        return True

    def close(self) -> None:
        """Leave the others, who do not wait."""
        self._member.close()

    def _made(self, last: _Round) -> None:
        """An update was made, which ended with that round."""
        self._busy_at = self._busy_at if self.abstains else time.monotonic()
        self.made_at, self.version = self.version, self.version + 1
        self._progress += 1
        if last.wanted:
            self._member.leave()

    def _round(self, gradients: Gradients | None, ends: bool = False) -> _Round | None:
        """Average gradients with the others'; None: this learner has none. None: others are not here yet, or one was
        lost."""
        if self._member.size > 1:
            return self._round_of_several({} if gradients is None else gradients.groups, gradients is not None, ends)
        parts = {} if gradients is None else gradients.groups
        for name, gradient in parts.items():
            if (network := self._networks[name]).clips_average:
                network.clip_average(gradient)
        return _Round(parts, gradients is not None, ends, self._member.wanted)

    def _round_of_several(self, own: dict[str, Tensor], takes_part: bool, ends: bool) -> _Round | None:
        words = float(takes_part), float(ends), float(self._member.wanted)
        total = self._member.sum(self._vector.filled(own, words))
        if total is not None and self._vector.again(total):
            total = self._member.sum(self._vector.filled(own, words))
        if total is None:
            return None
        sums, parts = self._vector.averages(total)
        return _Round(parts, int(sums[_TAKES_PART]), sums[_ENDS] > 0.0, sums[_WANTED] > 0.0)

    def _begin_gradient(self) -> None:
        if self._member.size > 1 and not self._takes_turns:
            self._vector.begin_pass()

    def _join(self) -> bool:
        """Take the state that all begin with. False: not all are here yet."""
        import torch

        from apexrl.agents.trained_agent import refresh

        vectors = [vector for network in self._networks.values() for vector in network.vectors().values()]
        own = State(_flat(vectors), self.version, self._progress, self._updates)
        found = self._member.join(own, self._vector.gradient_floats, self._form)
        if found is None:
            return False
        start = 0
        with torch.no_grad():
            for vector in vectors:
                vector.copy_(found.vector[start : start + vector.numel()].view_as(vector))
                start += vector.numel()
        refresh(self._agent)
        self._updates, self._progress = found.updates, found.progress
        self.missed, self.version = self.missed + found.version - self.version, found.version
        return True

    @property
    def _updates(self) -> int:
        """Of the agent's own count, by which targets and rare steps go."""
        return getattr(self._agent, "updates", 0)

    @_updates.setter
    def _updates(self, value: int) -> None:
        if hasattr(self._agent, "updates"):
            self._agent.updates = value


def _flat(vectors: list[Tensor]) -> Tensor:
    """Some vectors as one on the host, float32."""
    import torch

    # some optimizers count their steps on the CPU, whatever the device of the rest
    return torch.cat([vector.detach().reshape(-1).cpu() for vector in vectors])


def _one_step(agent: Any, prepared: Any) -> Steps:
    """An update of one gradient step, as ``Agent.steps`` would have it."""
    gradients = agent.gradients(prepared)
    agent.apply((yield gradients))
    return Learned(gradients.priorities, gradients.metrics)
