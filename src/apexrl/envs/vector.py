"""B environments behind one call: named observations, learner's rewards, finished episodes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apexrl.envs.lockstep import Backend, Bools, Changes, Which
from apexrl.envs.spaces import spec_of
from apexrl.errors import ConfigError, EnvError
from apexrl.spec import ACTION_MASK, Array

_SLICE_SECONDS = 1.0
_FEW_BYTES = 4096  # of masks: a search through more takes longer than reductions


class Episode(NamedTuple):
    """A finished episode with its unclipped return: a whole game, even where a lost life ends the learner's episode."""

    env: int
    episode_return: float  # sum of the environment's own rewards
    length: int  # environment steps
    metrics: Mapping[str, float] = {}  # what its last info tells (``told_metrics``)


class Stepped(NamedTuple):
    """The result of one step of R environments. ``reward``, ``terminated``, ``truncated`` belong to the action."""

    observation: dict[str, Array]  # name -> [R, *shape]
    reward: NDArray[np.float32]  # [R], clipped when so configured
    terminated: Bools  # [R]
    truncated: Bools  # [R]
    starts: Bools  # [R], the observation begins an episode: the action was ignored, the reward is 0
    episodes: list[Episode]  # finished by this step
    which: Which = None  # [R], numbers of the environments; None: all, in order
    idle: Bools | None = None  # [R], of agents that take no part: this is no step of theirs, and is not recorded

    @property
    def played(self) -> Bools:
        """[R], an action was taken."""
        return ~self.starts if self.idle is None else ~(self.starts | self.idle)

    @property
    def steps(self) -> int:
        """How many actions were taken."""
        return len(self.starts) - int(np.count_nonzero(self.starts if self.idle is None else self.starts | self.idle))


class VectorEnv:
    """B environments with NEXT_STEP autoreset: an evaluator makes a ``step`` of all, an actor does ``send`` and
    ``receive`` for whichever are ready. Masks of actions are looked at: each choice must have a possible action, unless
    the episode has terminated there.

    After an end comes the row of the reset: its action was ignored, its reward is 0 and ``starts`` is true. The final
    observation is the observation of the step that ended.

    Where rows are agents, one whose part has ended is ``idle`` until the next episode of its environment begins, and so
    is one that has yet to appear.

    Args:
        name: of the environment, for errors.
        stack: frames that the agent sees at once, for ``spec``; observations come unstacked.
        reward_clip: largest magnitude of the learner's reward; 0 leaves it. Episode returns are never clipped.
        seed: of all B environments, which get distinct ones.
        chosen: why it was chosen to step them in threads; empty: it was not.
        unheeded: settings that callbacks change and that ``backend`` cannot take; None: it takes them itself.

    Attributes:
        lockstep: ``receive`` yields rows of all environments, in order, and ``which`` is None.
        device: where the environment's torch tensors lie, if it brings any; else ``cpu``.
        time_limit: steps after which an environment of several agents says that it truncates them; None: it does not.
    """

    def __init__(
        self,
        backend: Backend,
        name: str,
        stack: int = 1,
        reward_clip: float = 0.0,
        seed: int = 0,
        chosen: str = "",
        unheeded: Changes | None = None,
    ) -> None:
        self._unheeded = unheeded
        self.num_envs, self.lockstep = backend.num_envs, backend.lockstep
        self.name, self.chosen = name, chosen
        self.device: str = getattr(backend, "device", "") or "cpu"
        self.time_limit: int | None = getattr(backend, "time_limit", None)
        self.spec = spec_of(backend.leaves, backend.action_space, stack)
        if agents := getattr(backend, "agents", ()):
            self.spec = replace(self.spec, agents=agents)
        self._nothing = bytes(min(self.spec.action.choices)) if self.spec.masked else b""
        self._absent = np.zeros(self.num_envs, np.bool_)
        self._backend = backend
        self._clip = reward_clip
        self._most = float(np.finfo(np.float64 if reward_clip else np.float32).max)  # magnitude of a reward
        self._seed = seed
        self._everybody = np.arange(self.num_envs)
        self._ended = np.zeros(self.num_envs, np.bool_)
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, np.int64)
        self._resting: Bools | None = None
        self._closed = False

    @property
    def ignores_mask(self) -> bool:
        """Whether an info tells a mask of possible actions, and nobody reads it."""
        return getattr(self._backend, "ignores_mask", False)

    @property
    def absent(self) -> Bools:
        """[B], agents that have not appeared since the reset of all."""
        return self._absent

    def reset(self, seed: int | None = None) -> dict[str, Array]:
        """Reset all environments; ``seed`` replaces the one given at construction. Returns name -> [B, *shape].

        Raises:
            EnvError: an environment raised an error, its observation does not fit its space, or a mask leaves no
                action.
        """
        self._seed = self._seed if seed is None else seed
        seeds = np.random.SeedSequence(self._seed).generate_state(self.num_envs, np.uint32)
        self._refuse_changes()
        observation = self._backend.reset([int(s) for s in seeds])
        self._absent[:], self._resting = getattr(self._backend, "absent", False), None
        self._ended[:], self._returns[:], self._lengths[:] = self._absent, 0.0, 0
        if self._nothing:
            self._look(observation[ACTION_MASK], self._absent)
        return observation

    def send(self, actions: Array, which: Which = None) -> None:
        """Begin a step of environments ``which``. ``actions`` [R] or [R, k] integers from 0, or [R, *shape] float32.

        Environments in lock-step are all stepped here, and ``which`` is None.

        Raises:
            EnvError: an environment raised an error.
        """
        starts = self._ended if which is None else self._ended[which]
        counted = self.spec.action.as_counted(actions)
        if counted is actions:  # which its caller records: an environment may scale or clip its actions in place
            counted = np.array(actions)
        self._backend.send(counted, starts, which)

    def receive(self, least: int = 1, timeout: float = 0.0) -> Stepped | None:
        """The steps that are done: of all, where environments go in lock-step, else of at least ``least``.

        Args:
            timeout: seconds to wait for so many; with fewer, the answer is None.

        Raises:
            EnvError: an environment raised an error, a reward is NaN, infinite or too large for a float32, or a mask
                leaves no action.
        """
        rows = self._backend.receive(least, timeout)
        if rows is None:
            return None
        reward, which = rows.reward, rows.which
        numbers = self._everybody if which is None else which
        possible = np.abs(reward) <= self._most  # of NaN it is not true
        if not possible.all():
            row = int(np.flatnonzero(~possible)[0])
            raise EnvError(
                f"{self.name}: environment {numbers[row]} returned the reward {reward[row]}; it must be finite as a "
                "float32"
            )
        at = slice(None) if which is None else which
        starts = self._ended[at].copy()
        ended = rows.terminated | rows.truncated
        idle: Bools | None = None
        if rows.waiting is not None:
            starts &= ~rows.waiting
            idle = rows.waiting | (starts & self._absent[at])  # who appears later has no final observation behind it
            self._absent[at] &= ~starts
        self._ended[at] = ended if rows.waiting is None else ended | (rows.waiting & self._ended[at])
        self._returns[at] += reward
        self._lengths[at] += ~starts if idle is None else ~(starts | idle)
        episodes: list[Episode] = []
        if ended.any():
            self._refuse_changes()
            games = numbers[ended if rows.life_lost is None else ended & ~rows.life_lost]
            for number in games.tolist():
                told = rows.metrics.get(number, {}) if rows.metrics else {}
                episodes.append(Episode(number, float(self._returns[number]), int(self._lengths[number]), told))
            self._returns[games], self._lengths[games] = 0.0, 0
        if self._nothing:
            unread = rows.terminated if idle is None else rows.terminated | idle
            unread = unread if self._resting is None else unread | self._resting
            self._look(rows.observation[ACTION_MASK], unread, rows.truncated, which)
        clipped = np.clip(reward, -self._clip, self._clip) if self._clip else reward
        learned: NDArray[np.float32] = clipped.astype(np.float32, copy=False)
        return Stepped(rows.observation, learned, rows.terminated, rows.truncated, starts, episodes, which, idle)

    def _look(self, masks: Array, unread: Bools, truncated: Bools | None = None, which: Which = None) -> None:
        """Refuse a mask [R, n] that leaves nothing of a choice, where it is not ``unread`` [R]."""
        # That takes a run of zeros. Between a network's passes caches are cold, and a search for one takes 4.7 µs where
        # a reduction takes 5.6 (docs/results/action-masks.md).
        if masks.nbytes <= _FEW_BYTES and self._nothing not in masks.tobytes():
            return
        some = self.spec.action.possible_in(masks) | unread
        if some.all():
            return
        row = int(np.flatnonzero(~some)[0])
        number = row if which is None else int(which[row])
        step = int(self._lengths[number])
        where = f"behind step {step} of its episode" if step else "at a reset"
        if truncated is not None and truncated[row]:
            where = "where its episode was truncated, which is not the end of its returns"
        raise EnvError(
            f"environment {self.name} (number {number} of this actor) {self.spec.action.nothing_left} {where}: a mask "
            "must leave one, unless the episode has terminated"
        )

    def _refuse_changes(self) -> None:
        if self._unheeded is not None and self._unheeded().version:
            raise ConfigError(
                f"a callback has changed settings of the environment, and {self.name} is stepped in a vectorised form, "
                "which takes none: add --no-native-envs, or leave the change out if it has no other form"
            )

    @property
    def tensors(self) -> Mapping[str, Any]:
        """The newest observations of all environments as torch tensors on ``device``, name -> [B, *shape], where the
        environment brings such; they hold until the next ``send``. Else empty."""
        return getattr(self._backend, "tensors", {})

    def step(self, actions: Array) -> Stepped:
        """Step every environment and wait for all of them. ``actions`` as for ``send``, [B, ...].

        Raises:
            EnvError: as ``send`` and ``receive``.
        """
        self.send(actions)
        while (stepped := self.receive(self.num_envs, _SLICE_SECONDS)) is None:
            pass
        return stepped

    @property
    def rests(self) -> bool:
        """Whether some environments can be left alone while others are stepped."""
        return hasattr(self._backend, "rest")

    def rest(self, which: Bools) -> None:
        """Environments ``which`` [B] need not be stepped until the next reset of all: what comes of them means nothing.
        Where one ``rests`` it then takes no time."""
        if (rest := getattr(self._backend, "rest", None)) is not None:
            rest(which)
            self._resting = which
            self._ended[which] = False  # nor are they reset

    def close(self) -> None:
        """Close every environment; may be called twice. Their errors are warnings: nothing comes after."""
        if not self._closed:
            self._closed = True
            try:
                self._backend.close()
            except EnvError as error:
                warnings.warn(str(error), RuntimeWarning, stacklevel=2)
