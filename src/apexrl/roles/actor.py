"""The actor: steps its environments with the newest weights it has, and writes what happened into the replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from apexrl.config import Config
from apexrl.errors import AgentError, WaitTimeout
from apexrl.exploration import slot_exploration
from apexrl.protocols import Agent, Arrays, Context, StepWriter, WeightsReader
from apexrl.roles.per_env import PerEnv, Which
from apexrl.spec import Array, EnvSpec, Field

if TYPE_CHECKING:
    from apexrl.replay import Replay

VERSION = "version"
"""Field in which every step carries the weights version that chose its action."""

FIRST_VERSION = 1
"""Weights version of a run that has learned nothing yet, however often its learner was restarted."""

PriorityFn = Callable[[Arrays], NDArray[np.float32]]
"""Items (``protocols.Agent.priorities``) -> |δ| [N]."""

_REPORT_SECONDS = 0.25
_REPORT_EPISODES = 1000  # a message holds no more


def step_fields(spec: EnvSpec, extras: dict[str, Field]) -> dict[str, Field]:
    """What an actor writes per step, beside reward, terminated and truncated, which every replay has.

    Raises:
        AgentError: the agent records a field under a name that is taken.
    """
    own = {**spec.observation, "action": Field(spec.action.shape, spec.action.dtype), VERSION: Field((), "int64")}
    taken = (own.keys() | {"reward", "terminated", "truncated"}) & extras.keys()
    if taken:
        raise AgentError(
            f"the agent's step_spec names {', '.join(sorted(taken))}, which every step has already: rename"
        )
    return {**own, **extras}


def wanted_priorities(config: Config, priorities: PriorityFn) -> PriorityFn | None:
    """What a replay's writer calls for the priorities of new items; None where draws are uniform: then nobody reads
    them, and some agents would evaluate networks for them."""
    return priorities if config.replay.alpha else None


class Actor:
    """Ape-X's actor (Horgan et al. 2018, Algorithm 1) over M environments at once.

    Slot ``index`` of the run owns M rungs that span the ladder of ε or σ, whoever serves in it; environments and
    exploration noise are seeded anew in every generation.

    With ``vector = "sync"`` all environments are always ready, and ``which`` is None throughout. With ``"threads"``
    each takes its own time, and ``which`` [R] are the numbers of those that are ready.
    """

    def __init__(
        self, context: Context, *, config: Config, spec: EnvSpec, replay: Replay, weights: WeightsReader
    ) -> None:
        from apexrl.agents import agent_class
        from apexrl.envs import FrameStack, make_vector

        envs = config.actor.envs_per_actor
        slots = config.actor.actor_slots or config.actor.actors
        seeds = np.random.SeedSequence(context.seed).generate_state(2)
        self._context = context
        self._weights = weights
        self._pull_period = config.actor.pull_period * envs
        self._exploration = slot_exploration(spec.action, config.actor, context.index, slots, envs)
        self._random_start = config.actor.random_start
        self._agent: Agent = agent_class(config.agent.agent)(spec, config.agent, "cpu", int(seeds[0]))
        with context.env_call():
            self._env = make_vector(config.env, envs, int(seeds[1]), config.actor.vector, context.env_call)
            self._observation = self._env.reset()
        self._frames = FrameStack(spec.stack, envs, spec.observation)
        # Of whoever waits for an action; None: nobody does.
        self._seen: dict[str, Array] | None = self._frames.push(self._observation)
        self._which: Which = None if config.actor.vector == "sync" else np.arange(envs)
        self._state = PerEnv(envs)
        self._begun = PerEnv(envs)
        self._writer: StepWriter = replay.writer(
            streams=envs, priority_fn=wanted_priorities(config, self._agent.priorities)
        )
        self._unwritten: dict[str, Array] | None = None

        self._version = 0
        self._versions = np.zeros(envs, np.int64)
        self._until_pull = 0  # environment steps
        self._returns: list[float] = []
        self._lengths: list[int] = []
        self._next_report = context.clock() + _REPORT_SECONDS

    def step(self) -> bool:
        """One step of whichever environments are ready.

        False: no weights are published yet, or the replay takes no more just now.
        """
        if self._until_pull <= 0:
            self._pull()
        if self._version == 0:
            return False
        if self._unwritten is None:
            self._act()
            self._unwritten = self._collect()
        if self._unwritten is None:
            return True  # every environment is at work
        streams = None if self._which is None else self._which.tolist()
        try:
            self._writer.append(self._unwritten, streams, timeout=self._context.patience)
        except WaitTimeout:
            return False  # nothing was taken; the same steps are offered again
        self._unwritten = None
        self._report()
        return True

    def _act(self) -> None:
        """Choose for all who wait for an action, and let them step."""
        if self._seen is None:
            return
        which = self._which
        exploration = self._exploration if which is None else self._exploration[which]
        if self._random:
            exploration = np.full_like(exploration, np.inf)
        actions, extras, state = self._agent.act(self._seen, self._state.take(which) or None, exploration)
        self._state.put(which, state or {})
        versions = self._versions[: len(actions)]
        self._begun.put(which, {**self._observation, "action": actions, **extras, VERSION: versions})
        self._env.send(actions, which)
        self._seen = None

    def _collect(self) -> dict[str, Array] | None:
        """The steps that are done: each observation, its action and the action's results. None: none so far."""
        stepped = self._env.receive(timeout=self._context.patience)
        if stepped is None:
            return None
        which = self._which = stepped.which
        steps: dict[str, Array] = {
            **self._begun.take(which),
            "reward": stepped.reward,
            "terminated": stepped.terminated,
            "truncated": stepped.truncated,
        }
        self._observation = stepped.observation
        self._seen = self._frames.push(stepped.observation, stepped.starts, which)
        self._state.clear(which, stepped.starts)
        rows = len(stepped.starts)
        self._until_pull -= rows
        self._context.count(env_steps=rows - int(np.count_nonzero(stepped.starts)))
        for episode in stepped.episodes:
            self._returns.append(episode.episode_return)
            self._lengths.append(episode.length)
        return steps

    def _pull(self) -> None:
        newest = self._weights.latest(newer_than=self._version)
        if newest is not None:
            self._version, arrays = newest
            self._agent.load(arrays)
            self._versions = np.full(len(self._versions), self._version, np.int64)
            self._context.count(weights_pulled=1)
        if self._version:  # random actions end as soon as something was learned; a look costs one comparison
            self._until_pull = 0 if self._random else self._pull_period

    @property
    def _random(self) -> bool:
        """Whether nothing is learned yet and actions are to be random until then."""
        return self._random_start and self._version == FIRST_VERSION

    def _report(self, last: bool = False) -> None:
        if not self._returns:
            return
        now = self._context.clock()
        if now >= self._next_report or last or len(self._returns) >= _REPORT_EPISODES:
            values: dict[str, Any] = {"returns": self._returns, "lengths": self._lengths}
            self._context.count(episodes=len(self._returns))
            self._context.send("episodes", **values, env_steps=self._context.total("env_steps"))
            self._returns, self._lengths = [], []
            self._next_report = now + _REPORT_SECONDS

    def close(self) -> None:
        """Publish the steps written so far, report the last episodes, close the environments."""
        self._writer.close()
        self._report(last=True)
        with self._context.env_call():
            self._env.close()
