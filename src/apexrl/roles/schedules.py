"""What changes over a run: step size, importance weights and exploration, by the environment steps that are made; in
topology offline, which makes none, by the updates.

They are counted over the whole run, all its lives and hosts. So a schedule is the same function of experience whoever
is faster, and a resumed run goes on with what it had. The horizon of returns goes by the learner's updates.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apexrl.agents import AGENTS
from apexrl.agents.exploration import slot_exploration
from apexrl.agents.setting_relevance import unread
from apexrl.config import Config
from apexrl.errors import AgentError
from apexrl.protocols import Context, Item
from apexrl.spec import ActionSpec


def run_env_steps(context: Context) -> int:
    """How many environment steps the run has made, as far as is known here."""
    return max(context.total("env_steps"), context.total("run_env_steps"))


_BETA_DECIMALS = 2  # batches that are drawn ahead, or several at a time, have one β: it should change seldom


class RunProgress:
    """Which part of a run's schedules is made, 0 … 1."""

    def __init__(self, context: Context, config: Config) -> None:
        self._context = context
        self._by_updates = config.topology == "offline"
        stop = config.stop
        self._budget = stop.updates if self._by_updates else stop.schedule_env_steps or stop.env_steps

    def __call__(self) -> float:
        made = self._context.total("updates") if self._by_updates else run_env_steps(self._context)
        return min(1.0, made / self._budget) if self._budget else 0.0


class Anneal:
    """``--anneal``: tells an agent, before each of its updates, which part of its schedules is made."""

    def __init__(self, context: Context, config: Config) -> None:
        self._progress = RunProgress(context, config) if config.agent.anneal else None

    def tell(self, agent: Any) -> None:
        """Before an update.

        Raises:
            AgentError: it is to be told and has no ``anneal``.
        """
        if self._progress is None:
            return
        if not callable(getattr(agent, "anneal", None)):
            raise AgentError(f"--anneal needs an agent with anneal(progress), which {type(agent).__name__} has not")
        agent.anneal(self._progress())


class Beta:
    """The exponent of importance weights: ``beta``, and from there linearly to ``--beta-end``, with the schedules."""

    def __init__(self, context: Context, config: Config) -> None:
        self._first = config.replay.correction
        self._last = config.agent.beta_end if config.replay.alpha else 0.0
        self._progress = RunProgress(context, config) if self._last else None

    def __call__(self) -> float:
        """β of a batch that is drawn now."""
        if self._progress is None:
            return self._first
        return round(self._first + self._progress() * (self._last - self._first), _BETA_DECIMALS)


class HorizonOf:
    """``--anneal-horizon``: n and γ of a batch that is drawn now, as the agent that learns from it says.

    Raises:
        AgentError: it is to say and has no ``horizon``.
    """

    def __init__(self, agent: Any, config: Config) -> None:
        if config.agent.anneal_horizon and not hasattr(agent, "horizon"):
            raise AgentError(f"--anneal-horizon needs an agent with horizon, which {type(agent).__name__} has not")
        unrolls = getattr(agent, "item", Item()).kind == "unroll"  # whose discounts the agent scales by itself
        self._agent = agent if config.agent.anneal_horizon and not unrolls else None

    def __call__(self) -> dict[str, Any]:
        """Arguments of ``Replay.sample``; none where nothing changes."""
        return {} if self._agent is None else dict(self._agent.horizon._asdict())


class Exploration:
    """How much the environments of some actor slots explore; ε falls to that from 1 over ``--exploration-steps``.

    Args:
        mine: the slots, of ``slots`` with ``envs`` environments each.
    """

    def __init__(
        self, context: Context, config: Config, action: ActionSpec, mine: Iterable[int], slots: int, envs: int
    ) -> None:
        self._context = context
        self._rungs = np.concatenate([slot_exploration(action, config.actor, slot, slots, envs) for slot in mine])
        self._steps = 0 if action.box else config.agent.exploration_steps

    def __call__(self) -> NDArray[np.float32]:
        """Of actions that are chosen now, float32 [environments]."""
        if not self._steps:
            return self._rungs
        left = 1.0 - run_env_steps(self._context) / self._steps
        if left <= 0.0:
            self._steps = 0
            return self._rungs
        return (self._rungs + left * (1.0 - self._rungs)).astype(np.float32)


class ScheduleMetrics:
    """Where ε and β of the whole run are; the agent itself reports its step size.

    Args:
        item: what the agent learns from; of unrolls there are no priorities to correct.
    """

    def __init__(self, context: Context, config: Config, action: ActionSpec, item: Item) -> None:
        slots, envs = config.actor.actor_slots or config.actor.actors, config.actor.envs_per_actor
        name = config.agent.agent
        reads = name in AGENTS and "epsilon" not in unread(name) and not (action.box or action.hybrid)
        acts = reads and config.topology != "offline"
        self._epsilon = Exploration(context, config, action, range(slots), slots, envs) if acts else None
        self._beta = Beta(context, config) if config.replay.alpha and item.kind != "unroll" else None

    def beside(self, metrics: dict[str, float]) -> dict[str, float]:
        """``metrics`` of an update, with those of now; nothing where it has none."""
        if not metrics:
            return {}
        found = {}
        if self._epsilon is not None:
            epsilon = self._epsilon()
            found = {"epsilon_mean": float(epsilon.mean()), "epsilon_max": float(epsilon.max())}
        if self._beta is not None:
            found["beta"] = self._beta()
        return found | metrics  # an agent's own of these names stay
