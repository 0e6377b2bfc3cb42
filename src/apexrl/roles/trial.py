"""Some episodes with the same weights, over environments stepped together."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from apexrl.config import EvaluatorConfig
from apexrl.protocols import Agent, State
from apexrl.roles.action_check import ActionCheck
from apexrl.roles.env_arrays import zeroed
from apexrl.roles.executed_actions import ExecutedActions, changes_actions
from apexrl.roles.expected_returns import ExpectedReturns
from apexrl.run.episode_metrics import Spread, Spreads
from apexrl.shared.thread_seconds import moment

if TYPE_CHECKING:
    from apexrl.envs import FrameStack, VectorEnv

WAITED_EPISODES: Final = 100
"""For an agent that has not appeared; those of another agent."""


class Trial:
    """Exactly ``episodes`` episodes over B environments stepped together.

    Every environment owes a number of episodes that is fixed beforehand. Taking whichever end first would favour
    short episodes. Where an agent has not appeared while another one played ``WAITED_EPISODES``, that
    one plays its episodes, too.

    Args:
        seed: of the environments, and of what ``settings`` have drawn.
        check: looks at the agent's actions; None: nobody does.
        gamma: discount of the returns that are compared with those that the agent expects; None: none are.
        settings: how the agent acts; the defaults are greedy.

    Raises:
        ConfigError: the settings mean nothing for the environment's actions.
    """

    def __init__(
        self,
        agent: Agent,
        env: VectorEnv,
        frames: FrameStack,
        episodes: int,
        seed: int,
        check: ActionCheck | None = None,
        gamma: float | None = None,
        settings: EvaluatorConfig | None = None,
    ) -> None:
        settings = settings or EvaluatorConfig()
        self._greedy = settings.eval_actions == "greedy"
        self._changes: ExecutedActions | None = None
        if changes_actions(settings):
            self._changes = ExecutedActions(settings, env.spec, env.num_envs, seed)
        self._agent = agent
        self._env = env
        self._check = check
        self._frames = frames
        each, more = divmod(episodes, env.num_envs)
        self._owed = [each + (index < more) for index in range(env.num_envs)]
        self._exploration = np.zeros(env.num_envs, np.float32)
        self._state: State = None
        self._seen = frames.push(env.reset(seed))
        if not all(self._owed):
            env.rest(np.array([not owed for owed in self._owed]))
        self._ended = [0] * env.num_envs  # episodes, also those that nobody owes
        self.returns: list[float] = []
        self.steps = 0  # of each environment
        self._told = Spreads()
        self._expected = None if gamma is None else ExpectedReturns(agent, gamma, self._seen)
        self._began = moment()

    @property
    def seconds(self) -> float:
        """Since the trial began, without those in which its thread had no core; above 0."""
        return self._began.own_until(moment())

    @property
    def queued(self) -> float:
        """Seconds since the trial began in which this thread could have gone on, and had no core."""
        return moment().queued - self._began.queued

    @property
    def _lasted(self) -> float:
        """Seconds since the trial began."""
        return time.perf_counter() - self._began.clock

    def late(self, seconds: float) -> bool:
        return self._lasted > seconds

    def overdue(self) -> str:
        return (
            f"an evaluation was given up after {self._lasted:.3g} s and {self.steps:,} steps of each "
            f"environment (at most --eval-timeout, less where no episode ends): {len(self.returns)} episodes ended. "
            "Give the environment a time limit, or a shorter one, with --max-episode-steps"
        )

    def step(self) -> bool:
        """Step every environment once. False: all episodes are done.

        Raises:
            AgentError: the agent's actions are none that the environment takes.
            EnvError: an environment raised an error.
        """
        acted = self._agent.act(self._seen, self._state, self._exploration, greedy=self._greedy)
        if self._check is None:
            actions, _, self._state = acted
        else:
            actions, _, self._state = self._check.parts(acted, self._env.num_envs)
            self._check.first(actions, self._env.num_envs)
        if self._changes is not None:
            actions = self._changes.of(np.asarray(actions), self._seen)
        self.steps += 1
        try:
            stepped = self._env.step(actions)
        except Exception:
            if self._check is not None:
                self._check.look(actions, self._env.num_envs)
            raise
        self._seen = self._frames.push(stepped.observation, stepped.starts)
        if self._expected is not None:
            self._expected.note(stepped, self._seen, self._owed)
        if self._state and stepped.starts.any():
            self._state = zeroed(self._state, stepped.starts)
        counted = [episode for episode in stepped.episodes if self._owed[episode.env]]
        if self._changes is not None:
            self._changes.stepped(actions, stepped.starts, [episode.env for episode in counted])
        for episode in counted:
            self._owed[episode.env] -= 1
            self.returns.append(episode.episode_return)
            self._told.add(episode.metrics)
        if counted:
            self._env.rest(np.array([not owed for owed in self._owed]))
        for episode in stepped.episodes:
            self._ended[episode.env] += 1
        if any(self._owed) and max(self._ended) >= WAITED_EPISODES:
            self._play_for_absent()
        return any(self._owed)

    def _play_for_absent(self) -> None:
        """Whoever has played most owes the episodes of agents that have not appeared, too."""
        most = self._ended.index(max(self._ended))
        for row in np.flatnonzero(self._env.absent).tolist():
            self._owed[most] += self._owed[row]
            self._owed[row] = 0

    def compared(self) -> dict[str, Any]:
        """Lengths and ends of the episodes, and their discounted returns beside what the agent expected."""
        return {} if self._expected is None else self._expected.report()

    @property
    def metrics(self) -> dict[str, Spread]:
        """What environments told of these episodes."""
        return self._told.added

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))
