"""The learner role: samples batches, updates the agent, writes priorities back, publishes weights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from apexrl.config import Config
from apexrl.errors import AgentError, NonFiniteError, PriorityError, SpecError
from apexrl.protocols import Agent, Context, Item, Learned, WeightsReader, WeightsWriter
from apexrl.roles import checkpointing
from apexrl.roles.actor import FIRST_VERSION
from apexrl.roles.batch_source import DirectBatches, PrefetchedBatches, Ready, UnsentPriorities
from apexrl.roles.compute_device import agent_on_device, choice_told
from apexrl.roles.goal_relabelling import goal_relabelling
from apexrl.roles.policy_lag import AgeLimit, LagMeter, lags_of, lags_with_dataset
from apexrl.roles.role_traits import RoleTraits
from apexrl.roles.schedules import Anneal, Beta, HorizonOf, ScheduleMetrics
from apexrl.roles.sync_group import SyncGroup
from apexrl.roles.update_pace import UpdatePace
from apexrl.run.folder import RunFolder
from apexrl.run.status import Work
from apexrl.spec import Array, EnvSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from apexrl.links.averaging.gradient_averaging import GradientAveraging
    from apexrl.replay import Batch, BatchServer, Replay

    class Weights(WeightsWriter, WeightsReader): ...


_REPORT_SECONDS = 0.5
PREFETCH_ON_CUDA = 4


class Learner:
    """Ape-X's learner (Horgan et al. 2018, Algorithm 2). It owns the replay from its first sample on, or takes batches
    that a replay role samples for it.

    A restarted learner restores the newest checkpoint and goes on. Weights versions are one more
    than the learner updates ever made in the run, so they never go back: a version counts an attempt, even where a
    restored learner repeats the work. Version 1 means that nothing was learned, also after a restart or a resume.

    With ``averaging`` several learners make every update together (``SyncGroup``). The first publishes, counts updates
    and writes checkpoints for all. With ``elsewhere`` that is one of another host: this one publishes to the actors of
    its own host alone. ``publisher`` is the place of another learner that publishes to the actors beside it: all have
    the same parameters, so weights need not come from the first.
    """

    traits = RoleTraits(
        "learner",
        Work("gradients", "updates/s", "learning"),
        serial_steps=1,
        serial_limited=True,
        writes_checkpoints=True,
    )

    def __init__(
        self,
        context: Context,
        *,
        config: Config,
        spec: EnvSpec,
        replay: Replay | BatchServer,
        weights: Weights,
        averaging: GradientAveraging | None = None,
        elsewhere: bool = False,
        publisher: int | None = None,
    ) -> None:
        from apexrl.replay import BatchServer

        settings = config.learner
        agent, device = agent_on_device(config, spec, context.index, context.seed)
        self._context = context
        self._config = config
        self._replay = None if isinstance(replay, BatchServer) else replay
        self._weights = weights
        self._agent: Agent = agent
        self._item: Item = getattr(self._agent, "item", Item())
        quicken_products(self._agent, config, device, settings.batch_size)
        self._folder = RunFolder(context.folder)
        self._leads = not elsewhere and (averaging is None or context.index == 0)
        self._publishes = self._leads or elsewhere
        # It publishes once it has the others' state.
        self._follows = not self._publishes and context.index == publisher
        if self._leads:
            if told := choice_told(config, device):
                context.send("log", text=f"{context.name} {told}")
            checkpointing.restore(
                context, self._agent, weights, config.agent.agent, initial=config.learner.initial_weights
            )

        updates = context.total("updates")
        initial = settings.initial_weights
        if initial and not (self._leads or elsewhere or updates):
            # The group may make its first update before the leader joins: all begin with the same weights.
            if Path(initial).exists():
                checkpointing.take_up_initial(self._agent, initial, config.agent.agent)
            else:
                text = f"{context.name} takes the leader's weights, as --initial-weights {initial} is not on its host"
                context.send("log", text=text, level="warning")
        learned = updates > 0 or weights.version > FIRST_VERSION
        # A learner restarted before its first update has the weights that the board holds: nothing to publish.
        self._version = max(weights.version, updates) + 1 if learned else FIRST_VERSION
        self._publish()
        source = replay.learner(context.index) if isinstance(replay, BatchServer) else replay
        limit = settings.max_policy_lag
        self._ages = AgeLimit(limit, self._version, self._item) if limit else None
        if device.startswith("cuda") and not isinstance(replay, BatchServer):
            replay.allocator = pinned  # the gather then writes where the device copies from
        ahead = settings.prefetch if settings.prefetch >= 0 else PREFETCH_ON_CUDA * device.startswith("cuda")
        threaded = ahead > 0 and context.patience > 0  # taking turns in one process leaves nobody to fetch ahead
        draws = HorizonOf(self._agent, config)
        direct = DirectBatches(
            source,
            self._agent,
            settings.batch_size,
            Beta(context, config),
            context.patience,
            self._ages,
            threaded,
            draws,
            goal_relabelling(config),
        )
        self._batches = (
            PrefetchedBatches(direct, ahead, context.patience, config.stall_timeout, device) if threaded else direct
        )
        self._group: SyncGroup | None = None
        if averaging is not None:
            progress = getattr(self._agent, "updates", 0) or (updates if self._leads else 0)
            version = self._version if self._leads else FIRST_VERSION
            self._group = SyncGroup(context, self._agent, averaging, version, progress)
        self._unsent = UnsentPriorities(context, self._replay)
        self._held: Ready | None = None  # a batch whose update the others of the group have not made yet

        now = context.clock()
        self._lag = LagMeter(context)
        self._lags_of = lags_with_dataset if config.replay.dataset else lags_of
        self._metrics: dict[str, float] = {}
        self._schedules = ScheduleMetrics(context, config, spec.action, self._item)
        self._pace = UpdatePace(context, settings.updates_per_second)
        self._anneal = Anneal(context, config)
        self._next_report = now + _REPORT_SECONDS
        self._saving = checkpointing.Saving(context, settings.checkpoint_seconds, kept=settings.checkpoints_kept)

    def step(self) -> bool:
        """Make one update.

        Returns:
            False: there is no batch yet, ``updates_per_second`` says wait, or the other learners are still at theirs.
        """
        if self._held is None and not self._pace.due():
            return False
        group = self._group
        if self._follows and group is not None and group.joined:
            self._follows, self._publishes = False, True
            if group.version > self._weights.version:
                self._weights.publish(self._agent.weights(), group.version)
        ready = self._held or self._batches.next(wait=group is None or not group.abstains)
        if ready is None:
            followed = group is not None and group.abstain()
            if followed:
                self._follow_group(batches=0)
                self._made_update(gradients=0)
            self._report()
            return followed
        batch = ready.batch
        try:
            if group is None:
                self._anneal.tell(self._agent)
                learned: Learned | None = _learned(self._agent.update(ready.prepared), self._config.agent.agent)
            else:
                learned = group.update(ready.prepared)
        except NonFiniteError as error:
            raise NonFiniteError(nonfinite_message(self._context, error, self._version, batch)) from error
        if learned is None:
            self._held = ready
            self._report()
            return False
        self._held = None
        self._follow_group()
        self._pace.spend()
        lags, aged = self._lags_of(batch, self._version, self._item, ready.fresh)
        self._lag.add(lags)
        self._context.count(aged_steps=aged)
        if learned.priorities is not None:
            name = self._config.agent.agent
            write_back(self._context, name, self._batches, batch, self._version, learned.priorities)
        self._metrics = self._schedules.beside(learned.metrics) or self._metrics
        self._made_update(gradients=1)
        self._report()
        return True

    def _follow_group(self, batches: int = 1) -> None:
        """Take the version at which the newest update was made, of that many batches here. The others may have made
        some without this learner, which count if it is the one that counts."""
        group = self._group
        if group is None:
            return
        if self._leads and group.missed > 0:
            self._context.count(updates=group.missed)
        if self._ages is not None:
            self._ages.shift(group.made_at - self._version + 1 - batches)
        self._version, jumped, group.missed = group.made_at, group.missed > 0, 0
        if jumped:  # actors have weights of long ago
            self._publish()

    def _made_update(self, gradients: int) -> None:
        self._context.count(gradients=gradients, updates=int(self._leads))
        self._version += 1
        if self._version % self._config.learner.publish_period_updates == 0:
            self._publish()

    def close(self) -> None:
        """The last weights, the final checkpoint, and the replay when it is to be kept."""
        if self._group is not None:
            self._group.close()
        self._batches.close()
        self._publish()
        self._report(now=float("inf"))
        self._saving.last(self._checkpoint)
        if self._config.learner.save_replay and self._replay is not None and self._leads:
            checkpointing.save_replay(self._context, self._replay)

    def _checkpoint(self) -> None:
        if self._leads:
            checkpointing.write(self._context, self._agent, self._config.learner.checkpoints_kept)

    def _publish(self) -> None:
        if self._publishes and self._version > self._weights.version:
            self._weights.publish(self._agent.weights(), self._version)

    def _report(self, now: float | None = None) -> None:
        now = self._context.clock() if now is None else now
        if now >= self._next_report:
            self._next_report = now + _REPORT_SECONDS
            self._unsent.count()
            updates = self._context.total("updates")
            self._context.send("metrics", values=self._metrics, updates=updates, **self._lag.report())
        if now < float("inf") and self._saving.due:
            self._saving.now(self._checkpoint)


def nonfinite_message(context: Context, error: NonFiniteError, version: int, batch: Batch) -> str:
    """Why a run ends whose gradients became NaN or infinite, and what to do."""
    what = re.sub(r"^update \d+: ", "", str(error))  # an agent counts its own
    return (
        f"{which_update(version, batch)}: {what}. "
        f"{checkpointing.last_good(context)}. Lower --learning-rate or --gradient-clip, or look for NaN, "
        "infinite or huge rewards and observations"
    )


def which_update(version: int, batch: Batch) -> str:
    """Number and batch of an update, for a message."""
    keys = batch.keys.tolist()
    shown = ", ".join(f"{key:#x}" for key in keys[:8]) + (", …" if len(keys) > 8 else "")
    return f"update {version} (batch of {len(keys)} items, keys {shown})"


def write_back(
    context: Context,
    agent: str,
    batches: DirectBatches | PrefetchedBatches,
    batch: Batch,
    version: int,
    priorities: NDArray[np.float32],
) -> None:
    """Hand what an update made of a batch's priorities to the replay.

    Raises:
        AgentError: they are none; another generation would only repeat it.
    """
    try:
        batches.write_back(batch.keys, priorities)
    except (PriorityError, SpecError) as error:
        raise AgentError(
            f"{which_update(version, batch)}: agent {agent} returned priorities that cannot be: {error}. "
            f"{checkpointing.last_good(context)}. Look at the agent's update(), whose Learned.priorities are |δ| of "
            f"the {len(batch)} items, and at what makes δ NaN or infinite: --learning-rate, or NaN, infinite or huge "
            "rewards and observations"
        ) from error


def pinned(shape: tuple[int, ...], dtype: str) -> Array:
    """An array in page-locked memory, from which a copy to a CUDA device runs by itself."""
    import torch

    return cast("Array", torch.empty(shape, dtype=getattr(torch, dtype), pin_memory=True).numpy())


def quicken_products(agent: Agent, config: Config, device: str, items: int) -> None:
    """Let the quicker library multiply an agent's matrices, where it learns on the CPU, from ``items`` at once."""
    if device == "cpu":
        from apexrl.agents.matrix_products import choose_products

        item: Item = getattr(agent, "item", Item())
        steps = item.length // config.agent.minibatches if item.kind == "unroll" else 1
        choose_products(agent.weights(), items * steps)


def _learned(answer: Any, name: str) -> Learned:
    """What an agent's ``update`` returned. AgentError: something else than it must."""
    if hasattr(answer, "priorities") and hasattr(answer, "metrics"):
        return cast("Learned", answer)
    raise AgentError(
        f"agent {name}: update() returned {type(answer).__name__}; it must return Learned(priorities, metrics), as "
        "apexrl.protocols.Agent describes"
    )
