"""An actor for a program that steps its own environment: it receives observations and returns actions."""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from apexrl.client.observations import named_observation
from apexrl.errors import AgentError, ApexrlError, ClosedError, ConfigError, SpecError, WaitTimeout
from apexrl.protocols import Agent, State
from apexrl.roles.actor import FIRST_VERSION, VERSION, PriorityFn, step_fields, wanted_priorities
from apexrl.roles.newest_weights import version_of
from apexrl.roles.schedules import Exploration
from apexrl.space_values import refuse_no_action
from apexrl.spec import Array, EnvSpec

if TYPE_CHECKING:
    from apexrl.client.background import Carrier
    from apexrl.envs import FrameStack

_SLICE = 0.1  # seconds between looks at whether the run has ended, while waiting


class ClientActor:
    """An actor of a run, in the process of the program that steps its environment. Make one with ``connect``.

    For one thread; several environments take a connection each.
    """

    def __init__(self, carrier: Carrier, timeout: float) -> None:
        self._carrier = carrier
        self._timeout = timeout
        self._config = carrier.config
        self._spec: EnvSpec = carrier.spec
        self._lock = threading.Lock()  # held by the call in progress; a second thread is refused
        self._pid = os.getpid()
        # Priorities are computed by whichever thread publishes, and some agents evaluate a network for them.
        self._agent_lock = threading.Lock()
        self._agent = make_agent(carrier)
        priority_fn = locked(wanted_priorities(self._config, self._agent), self._agent_lock)
        self._writer = carrier.writer = carrier.replay.writer(streams=1, priority_fn=priority_fn)
        self._finalizer = weakref.finalize(self, carrier.close)  # also when the interpreter ends

        self._frames: FrameStack | None = None
        self._state: State = None
        self._starts = True  # the next observation begins an episode
        self._begun: dict[str, Array] | None = None  # the step whose action has no results yet, [1, ...] each
        self._unwritten: list[dict[str, Array]] = []
        self._return = 0.0  # of the episode so far, unclipped
        self._length = 0
        self._version = self._number = 0  # of the weights in use, and on the board
        self._explores: tuple[int, Exploration] | None = None  # in a slot
        self._until_pull = 0

    # --- what the program calls

    def act(self, observation: Any, greedy: bool = False) -> Any:
        """Choose the next action.

        Args:
            observation: of the environment: an array, or a (nested) dict of them. It is copied.
            greedy: without exploration; the step is stored all the same.

        Returns:
            An ``int`` (Discrete), else an array: int64 (MultiDiscrete) or float32 (Box), as the environment expects, or
            a tuple or dict of them.

        Raises:
            SpecError: the observation does not fit the run's environment, or its mask leaves no action; the message
                names the entry.
            WaitTimeout: no weights came in time, or experience could not be sent; the call may be repeated.
            ClosedError: the run has ended, or ``close`` was called.
        """
        with self._one_call("act"):
            self._carrier.check()
            if self._begun is not None:
                raise ApexrlError("act() was called twice: call observe() between two actions")
            named = named_observation(self._spec, observation)
            refuse_no_action(self._spec, named)
            self._write()
            self._pull()
            if self._starts:
                self._state = None
            action, extras = self._choose(named, greedy)
            self._starts = False
            self._begun = {**named, "action": action, **extras, VERSION: np.array([self._version], np.int64)}
            counted = self._spec.action.as_counted(action)
            return self._spec.action.of_one(np.array(counted[0]))

    def observe(self, reward: float, terminated: bool, truncated: bool, final_observation: Any = None) -> None:
        """Record the result of the last action.

        Args:
            reward: the environment's own, unclipped.
            terminated: the episode has ended in a terminal state.
            truncated: the episode was cut off; the agent bootstraps from the final observation.
            final_observation: the observation after the last action of an episode. Required when it was truncated;
                ignored while the episode continues, so it may always be given.

        Raises:
            SpecError: the reward is not finite, or the final observation is missing or wrong; nothing was stored.
            WaitTimeout: experience cannot be sent. The step is kept: call again, or call ``act``, which waits for room
                first.
            ClosedError: ``close`` was called. (Only ``act`` raises when the run has ended.)
        """
        with self._one_call("observe"):
            self._carrier.check(ended=False)
            if self._begun is None:
                if self._unwritten:  # a repeated call after WaitTimeout
                    return self._write()
                raise ApexrlError("observe() was called before act(): there is no action yet")
            value = _finite_reward(reward)
            terminated, truncated = bool(terminated), bool(truncated)
            final = self._final(final_observation, terminated, truncated)
            clip = self._config.env.reward_clip
            step = {**self._begun, **_results(max(-clip, min(value, clip)) if clip else value, terminated, truncated)}
            rows = [step]
            if terminated or truncated:
                rows.append({**step, **self._last(final, terminated), **_results(0.0, False, False)})
            self._begun, self._unwritten, self._starts = None, self._unwritten + rows, bool(terminated or truncated)
            self._until_pull -= 1
            self._count(value)
            return self._write()

    def close(self) -> None:
        """Send what is left, return the slot and end the threads; may be called twice.

        Waits a few seconds at most for the learner to receive it.
        """
        self._finalizer()

    @property
    def finished(self) -> bool:
        """Whether the run has ended: ``act`` raises ClosedError then."""
        return self._carrier.ended is not None

    @property
    def connected(self) -> bool:
        """Whether the server answered within the last seconds."""
        return self._carrier.connected

    @property
    def weights_version(self) -> int:
        """Version of the weights in use: the learner's updates + 1; 0: none yet."""
        return self._version

    @property
    def spec(self) -> EnvSpec:
        """Observations and actions of the run's environment."""
        return self._spec

    @property
    def slot(self) -> int:
        """The actor slot that this actor holds; it determines the exploration."""
        return self._carrier.slot

    @property
    def exploration(self) -> float:
        """Exploration: ε of discrete actions, σ of a box; infinite while actions are random."""
        if self._explores is None or self._explores[0] != self.slot:
            slots, action = self._carrier.record.actor_slots, self._spec.action
            mine = Exploration(self._carrier.context, self._config, action, [self.slot], slots, 1)
            self._explores = self.slot, mine
        return math.inf if self._random else float(self._explores[1]()[0])

    def __enter__(self) -> ClientActor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a ClientActor belongs to its process and cannot be pickled: call connect() in the other")

    def __repr__(self) -> str:
        return f"ClientActor(run {self._carrier.record.name!r}, slot {self.slot}, weights {self._version})"

    # --- inside

    @property
    def _random(self) -> bool:
        """Whether actions are random because there was no update yet."""
        return self._config.actor.random_start and self._version == FIRST_VERSION

    def _one_call(self, name: str) -> _OneCall:
        if os.getpid() != self._pid:
            raise ClosedError(
                f"this actor belongs to process {self._pid}, of which this is a fork: call connect() here too"
            )
        return _OneCall(self._lock, name)

    def _choose(self, named: dict[str, Array], greedy: bool) -> tuple[Array, dict[str, Array]]:
        """One action [1, ...] and the extras that the agent records with it."""
        seen: Mapping[str, Array] = named
        if self._spec.stack > 1:
            if self._frames is None:
                from apexrl.envs import FrameStack

                self._frames = FrameStack(self._spec.stack, 1, self._spec.observation)
            seen = self._frames.push(named, np.array([self._starts]))
        with self._agent_lock:
            actions, extras, self._state = self._agent.act(
                seen, self._state, np.array([self.exploration], np.float32), greedy=greedy
            )
        return np.asarray(actions), dict(extras)

    def _final(self, observation: Any, terminated: bool, truncated: bool) -> dict[str, Array] | None:
        """The final observation as named arrays; None where none is needed."""
        if not (terminated or truncated):
            return None
        if observation is not None:
            named = named_observation(self._spec, observation)
            if not terminated:
                refuse_no_action(self._spec, named)
            return named
        if not terminated:
            raise SpecError(
                "a truncated episode needs final_observation=, the observation after the last action: the agent "
                "bootstraps from it"
            )
        return None

    def _last(self, final: dict[str, Array] | None, terminated: bool) -> dict[str, Array]:
        """The changed fields of the episode's last row: the final observation, and what the agent records with it.

        After a termination the agent does not bootstrap, so the previous observation may stay.
        """
        if final is None:
            return {}
        if terminated:
            return final
        return {**final, **self._choose(final, greedy=True)[1]}

    def _pull(self) -> None:
        """Load newer weights, if there are any; wait for the first ones."""
        if self._version and self._until_pull > 0 and not self._random:
            return
        deadline = time.monotonic() + self._timeout
        while (newest := self._carrier.weights.latest(newer_than=self._number)) is None and not self._version:
            self._carrier.check()
            if time.monotonic() >= deadline:
                raise WaitTimeout(f"no weights came within {self._timeout:g} s: {self._carrier.why_silent()}")
            time.sleep(0.01)
        if newest is not None:
            number, arrays = newest
            try:
                with self._agent_lock:
                    self._agent.load(arrays)
            except (KeyError, ValueError, RuntimeError, TypeError) as error:
                name, agent = self._carrier.record.name, self._config.agent.agent
                raise AgentError(f"the weights of run {name} do not fit agent {agent}: {error}") from error
            self._number, self._version = number, version_of(number)
        self._until_pull = self._config.actor.pull_period

    def _write(self) -> None:
        """Append the observed steps. Waits while the window is full; steps without room in time are kept."""
        deadline = time.monotonic() + self._timeout
        while self._unwritten:
            if self._carrier.ended is not None:
                self._unwritten.clear()  # the learner takes nothing any more
                return
            try:
                self._writer.append(self._unwritten[0], timeout=_SLICE)
            except WaitTimeout:
                self._carrier.check(ended=False)
                if time.monotonic() >= deadline:
                    raise WaitTimeout(
                        f"no room for experience within {self._timeout:g} s: {self._carrier.why_silent()}. The step is "
                        "kept; call again, or run the learner with --when-full drop-oldest"
                    ) from None
                continue
            except ApexrlError:  # of priorities: the step itself was stored
                self._unwritten.pop(0)
                raise
            self._unwritten.pop(0)

    def _count(self, reward: float) -> None:
        self._return += reward
        self._length += 1
        self._carrier.count(env_steps=1)
        if self._starts:
            self._carrier.episode(self._return, self._length)
            self._return, self._length = 0.0, 0


class _OneCall:
    """Refuses a second thread while a call is in progress."""

    def __init__(self, lock: threading.Lock, name: str) -> None:
        self._lock, self._name = lock, name

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise ApexrlError(
                f"{self._name}() was called while another thread uses this actor: call connect() once per thread"
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def make_agent(carrier: Carrier) -> Agent:
    """The run's agent, in this process.

    Raises:
        ConfigError: the agent is unknown here, or records other fields than the learner's.
        AgentError: it cannot be made for this environment.
    """
    from apexrl.agents import agent_class, recorded
    from apexrl.topologies.validation import with_own_settings

    settings = with_own_settings(carrier.config).agent
    agent: Agent = agent_class(settings.agent)(carrier.spec, settings, "cpu", carrier.seed)
    own, theirs = (
        {name: (field.shape, field.dtype) for name, field in fields.items()}
        for fields in (step_fields(carrier.spec, recorded(agent)), carrier.fields)
    )
    if own != theirs:
        names = ", ".join(sorted(name for name in own.keys() | theirs.keys() if own.get(name) != theirs.get(name)))
        raise ConfigError(
            f"agent {settings.agent} records {names} differently here than on the learner's host of run "
            f"{carrier.record.name}: install the same version on both"
        )
    return agent


def locked(priorities: PriorityFn | None, lock: threading.Lock) -> PriorityFn | None:
    """``priorities`` under a lock. It holds no reference to the actor, which its writer outlives."""
    if priorities is None:
        return None

    def guarded(items: Mapping[str, Array]) -> NDArray[np.float32]:
        with lock:
            return priorities(items)

    return guarded


def _finite_reward(reward: Any) -> float:
    try:
        value = float(reward)
    except (TypeError, ValueError):
        raise SpecError(f"the reward must be a number, not {type(reward).__name__}") from None
    if not math.isfinite(value):
        raise SpecError(f"the reward is {value}; it must be finite")
    return value


def _results(reward: float, terminated: bool, truncated: bool) -> dict[str, Array]:
    return {
        "reward": np.array([reward], np.float32),
        "terminated": np.array([terminated]),
        "truncated": np.array([truncated]),
    }
