"""B environments as rows of arrays: what answers look like, and single environments that go in lock-step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import compress
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from apexrl.envs.action_masks import MASK, MASK_HINT
from apexrl.envs.action_spaces import action_spec
from apexrl.envs.spaces import LIMIT, Leaf, observation_leaves
from apexrl.envs.told_metrics import told_metrics
from apexrl.errors import ConfigError, EnvError, SpecError, said_by
from apexrl.run.env_changes import EnvChange
from apexrl.space_values import LengthLimit
from apexrl.spec import ACTION_MASK, ActionSpec, Array

ENV_VERSION = "env_version"  # metric of an episode: the number of the change of settings that it was played with
CUT_OFF = "cut_off"  # metric of an episode: bytes, elements, nodes and edges beyond --max-sequence-length
LIFE_LOST = "life_lost"  # info key: a life was lost, the game continues

Bools = NDArray[np.bool_]
Which = NDArray[np.int64] | None
"""Numbers of the environments that rows belong to, [R]; None: all B of them, in order."""

Changes = Callable[[], EnvChange]
"""The newest settings that callbacks have changed (``protocols.Context.env_change``)."""

EnvCall = Callable[[], AbstractContextManager[Any]]
"""Entered around every call into environments (``protocols.Context.env_call``), in the thread that makes it."""


class Rows(NamedTuple):
    """Answers of R environments."""

    observation: dict[str, Array]  # name -> [R, *shape]
    reward: NDArray[np.float64]  # [R]
    terminated: Bools  # [R]
    truncated: Bools  # [R]
    life_lost: Bools | None  # [R]; None: nowhere
    which: Which = None
    metrics: dict[int, dict[str, float]] | None = None
    """Number of an environment whose episode ended here -> what its info tells (``told_metrics``); None: nothing."""
    waiting: Bools | None = None
    """[R], of rows that are agents: it takes no part now, and nothing happened to it; None: nobody waits."""


class Backend(Protocol):
    """B environments with NEXT_STEP autoreset: the step after an end resets and ignores the action."""

    num_envs: int
    lockstep: bool  # every answer has rows of all
    observation_space: gym.Space[Any]  # of one environment
    action_space: gym.Space[Any]  # of one environment
    leaves: tuple[Leaf, ...]  # of its observation

    def reset(self, seeds: Sequence[int]) -> dict[str, Array]: ...
    def send(self, actions: Array, starting: Bools, which: Which) -> None:
        """Begin a step of some environments: ``actions`` [R, ...], ``starting`` [R] where it is a reset."""

    def receive(self, least: int, timeout: float) -> Rows | None:
        """The steps that are done, at least ``least`` of them; None: not so many within ``timeout`` seconds."""

    def close(self) -> None: ...


class LoopRows:
    """Single environments, one after the other. In lock-step: ``send`` makes the steps.

    ``gymnasium.vector.SyncVectorEnv`` does the same (a test holds the two equal), but merges every ``info`` and
    copies observations twice: most of the time of a small environment.
    """

    def __init__(
        self,
        envs: Sequence[gym.Env[Any, Any]],
        name: str,
        call: EnvCall = nullcontext,
        info_metrics: Sequence[str] = (),
        changes: Changes = EnvChange,
        limit: LengthLimit = LIMIT,
    ) -> None:
        self._name, self._call = name, call
        self.num_envs, self.lockstep = len(envs), True
        self.observation_space, self.action_space = envs[0].observation_space, envs[0].action_space
        self.leaves = observation_leaves(self.observation_space, limit)
        self._each = each_of(action_spec(self.action_space))
        self._singles = singles(envs, self.leaves, name, info_metrics, changes)
        self._rows: Rows | None = None
        self._seen: dict[str, Array] = {}  # the newest observations
        self._resting: Bools | None = None

    def reset(self, seeds: Sequence[int]) -> dict[str, Array]:
        rows = empty_rows(self.leaves, self.num_envs)
        self._seen, self._resting = rows.observation, None
        with self._call():
            for single, seed in zip(self._singles, seeds, strict=True):
                single.reset(seed, rows)
        refuse_not_finite(rows, self.leaves, self._name)
        return rows.observation

    def send(self, actions: Array, starting: Bools, which: Which = None) -> None:
        rows = empty_rows(self.leaves, self.num_envs)
        steps: Iterable[tuple[Single, Any, bool]]
        steps = zip(self._singles, self._each(actions), starting.tolist(), strict=True)
        if self._resting is not None:
            for name, array in rows.observation.items():
                array[self._resting] = self._seen[name][self._resting]
            steps = compress(steps, (~self._resting).tolist())
        with self._call():
            for single, action, starts in steps:
                single.step(action, starts, rows)
        refuse_not_finite(rows, self.leaves, self._name)
        self._rows, self._seen = rows, rows.observation

    def receive(self, least: int = 1, timeout: float = 0.0) -> Rows | None:
        rows, self._rows = self._rows, None
        return rows

    @property
    def ignores_mask(self) -> bool:
        """As of ``Single``."""
        return self._singles[0].ignores_mask

    def rest(self, which: Bools) -> None:
        """Step these [B] no more until the next reset: their observations stay, and nothing is earned or ends."""
        self._resting = which

    def close(self) -> None:
        with self._call():
            close_all([single.close for single in self._singles])


class Single:
    """One of B equal environments: errors name its number, results go into its row."""

    def __init__(
        self,
        env: gym.Env[Any, Any],
        leaves: tuple[Leaf, ...],
        name: str,
        number: int,
        info_metrics: Sequence[str] = (),
        changes: Changes = EnvChange,
    ) -> None:
        self._env, self._name, self._number = env, name, number
        self._leaves = [
            (leaf, leaf.path[0] if leaf.path else None, leaf.path[1:], leaf.name, leaf.plain(), leaf.field.shape)
            for leaf in leaves
        ]
        shown = any(leaf.name == ACTION_MASK for leaf in leaves)
        actions = action_spec(env.action_space)
        self._takes_mask = not (shown or actions.box or actions.hybrid)
        self.ignores_mask = False
        """Whether its info tells a mask of possible actions, and nobody reads it."""
        self._cut = 0  # of this episode's observations
        self._info_metrics, self._changes = info_metrics, changes
        self._change = EnvChange()  # that it has taken

    def reset(self, seed: int | None, rows: Rows) -> None:
        self._take_change()
        self._cut = 0
        given: dict[str, Any] = {} if seed is None else {"seed": seed}
        if self._change.options:
            given["options"] = dict(self._change.options)
        with blame(self._name, "reset", self._number):
            observation, info = self._env.reset(**given)
        self._store(observation, rows)
        self.ignores_mask = self._takes_mask and isinstance(info, Mapping) and MASK in info
        row = self._number
        rows.reward[row] = 0.0
        rows.terminated[row] = rows.truncated[row] = False
        if rows.life_lost is not None:
            rows.life_lost[row] = False

    def step(self, action: Any, starts: bool, rows: Rows) -> None:
        if starts:
            self.reset(None, rows)
            return
        row = self._number
        try:  # and not `blame`, which takes a tenth of a small environment's step
            observation, reward, ended, cut, info = self._env.step(action)
        except (Exception, SystemExit) as error:
            raise blamed(error, self._name, "step", row, f" ({MASK_HINT})" * self.ignores_mask) from error
        try:
            rows.reward[row] = reward if reward is not None else self._only_number(reward)  # it counts as NaN
        except (TypeError, ValueError, OverflowError):  # [1], as of an environment in a vector of one
            rows.reward[row] = self._only_number(reward)
        rows.terminated[row], rows.truncated[row] = self._flag("terminated", ended), self._flag("truncated", cut)
        if (ended or cut) and not isinstance(info, Mapping):
            raise EnvError(
                f"{self._name}: step() of environment {row} returned the info {info!r:.60}; it must be a dict"
            )
        if rows.life_lost is not None:
            rows.life_lost[row] = bool((ended or cut) and info.get(LIFE_LOST))
        self._store(observation, rows)
        version = self._change.version
        if rows.metrics is not None and (ended or cut) and (info or version or self._cut):
            rows.metrics[row] = (
                told_metrics(info, self._info_metrics)
                | ({ENV_VERSION: float(version)} if version else {})
                | ({CUT_OFF: float(self._cut)} if self._cut else {})
            )

    def _take_change(self) -> None:
        """Take what callbacks have changed.

        Raises:
            ConfigError: the environment has no such attribute: each other one would say the same.
        """
        change = self._changes()
        if change.version == self._change.version:
            return
        for name, value in change.attributes.items():
            if not self._env.has_wrapper_attr(name):
                raise ConfigError(
                    f"a callback has changed {name!r} of the environment, and {self._name} has no such attribute: "
                    "set it in its constructor, or change the options of its reset"
                )
            with blame(self._name, f"setting {name} of", self._number):
                self._env.set_wrapper_attr(name, value)
        self._change = change

    def _only_number(self, reward: Any) -> Any:
        return only_number(reward, f"{self._name}: step() of environment {self._number}")

    def _flag(self, what: str, value: Any) -> bool:
        return flag(value, what, f"{self._name}: step() of environment {self._number}")

    def close(self) -> None:
        with blame(self._name, "close", self._number):
            self._env.close()

    def _store(self, observation: Any, rows: Rows) -> None:
        kept, row = rows.observation, self._number
        try:
            for leaf, first, further, name, dtypes, shape in self._leaves:
                try:
                    value = observation if first is None else observation[first]
                    if further:
                        for key in further:
                            value = value[key]
                except (KeyError, IndexError, TypeError):
                    value = None
                # Most are written as they are; `store` takes half as long again
                if type(value) is np.ndarray and value.dtype in dtypes and value.shape == shape:
                    kept[name][row] = value
                else:
                    self._cut += leaf.store(observation, kept, row)
        except SpecError as error:
            raise EnvError(
                f"environment {self._name} (number {self._number} of this actor) returned {error}"
            ) from error


def singles(
    envs: Sequence[gym.Env[Any, Any]],
    leaves: tuple[Leaf, ...],
    name: str,
    info_metrics: Sequence[str] = (),
    changes: Changes = EnvChange,
) -> list[Single]:
    """Number the environments, and refuse different spaces."""
    for index, env in enumerate(envs):
        if env.observation_space != envs[0].observation_space or env.action_space != envs[0].action_space:
            raise EnvError(f"{name}: environment {index} has other spaces than environment 0; all must be equal")
    return [Single(env, leaves, name, number, info_metrics, changes) for number, env in enumerate(envs)]


def empty_rows(leaves: tuple[Leaf, ...], count: int) -> Rows:
    fields = {name: field for leaf in leaves for name, field in leaf.fields.items()}
    observation = {name: np.empty((count, *field.shape), field.dtype) for name, field in fields.items()}
    terminated, truncated, life_lost = (np.zeros(count, np.bool_) for _ in range(3))
    return Rows(observation, np.zeros(count), terminated, truncated, life_lost, metrics={})


def each(actions: Array) -> Sequence[Any]:
    """One action per environment: Python integers for Discrete spaces, cheaper for environments than NumPy scalars and
    always accepted; arrays for others."""
    return actions.tolist() if actions.ndim == 1 else actions  # type: ignore[return-value]


def each_of(space: ActionSpec) -> Callable[[Array], Sequence[Any]]:
    """What makes actions [B, ...], as the environment counts them, one action per environment."""
    return (lambda actions: [space.in_form(action) for action in actions]) if space.parts else each


def refuse_not_finite(rows: Rows, leaves: tuple[Leaf, ...], name: str) -> None:
    """Raise EnvError where a floating-point observation holds NaN or infinity, or a category is none of the space's."""
    for leaf in leaves:
        if leaf.categories and leaf.padded is None:
            _refuse_unknown(rows, leaf, name)
        if leaf.field.dtype.startswith("float") and not np.isfinite(rows.observation[leaf.name]).all():
            values = rows.observation[leaf.name]
            row = int(np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))[0])
            raise EnvError(
                f"environment {name} (number {row if rows.which is None else rows.which[row]} of this actor) returned "
                f"NaN or infinity in {leaf.name!r}, or a number too large for {leaf.field.dtype}: fix the environment, "
                "or wrap it so that it ends the episode instead"
            )


def _refuse_unknown(rows: Rows, leaf: Leaf, name: str) -> None:
    values: Any = rows.observation[leaf.name]
    if values.min() >= 0 and values.max() < leaf.categories:
        return
    row, *place = np.argwhere((values < 0) | (values >= leaf.categories))[0]
    raise EnvError(
        f"environment {name} (number {row if rows.which is None else rows.which[row]} of this actor) returned "
        f"{int(values[(row, *place)]) + leaf.start} in {leaf.name!r}; its observation space has {leaf.start} to "
        f"{leaf.start + leaf.categories - 1}"
    )


def only_number(reward: Any, who: str) -> Any:
    """A reward, which may be an array or a tensor of one.

    Raises:
        EnvError: it is something else.
    """
    array = np.asarray(reward)
    if array.size == 1 and array.dtype.kind in "biuf":
        return array.item()
    if array.size > 1:
        raise EnvError(
            f"{who} returned a reward of shape {array.shape}; it must be a number: weight several objectives into one, "
            "as MO-Gymnasium's LinearReward does"
        )
    raise EnvError(f"{who} returned the reward {reward!r:.60}; it must be a number")


def flag(value: Any, what: str, who: str) -> bool:
    """``terminated`` or ``truncated``, which may be a number, an array or a tensor.

    Raises:
        EnvError: it is something else, as the None of a function that forgets to return.
    """
    if isinstance(value, bool | int | float) or hasattr(value, "dtype"):
        try:
            return bool(value)
        except (TypeError, ValueError, RuntimeError):  # of several numbers
            pass
    raise EnvError(f"{who} returned {what} = {value!r:.60}; it must be True or False")


def close_all(closes: Sequence[Callable[[], Any]], name: str = "") -> None:
    """Call every one, and raise the first error then.

    Args:
        name: of the environments that these are, whose errors name it; empty: errors are raised as they are.

    Raises:
        EnvError: one raised it, or with ``name`` any error.
    """
    errors = []
    for number, close in enumerate(closes):
        try:
            with blame(name, "close", number) if name else nullcontext():
                close()
        except EnvError as error:
            errors.append(error)
    if errors:
        raise errors[0]


@contextmanager
def blame(name: str, call: str, index: int | None = None) -> Iterator[None]:
    """Turn any error of an environment into an EnvError that names it, with the traceback attached."""
    try:
        yield
    except (Exception, SystemExit) as error:  # some call sys.exit where their window is closed
        raise blamed(error, name, call, index) from error


def blamed(error: Exception | SystemExit, name: str, call: str, index: int | None = None, hint: str = "") -> EnvError:
    """What says whose error it is."""
    which = "" if index is None else f" of environment {index}"
    said = said_by(error)
    text = f"{name}: {call}(){which} raised {type(error).__name__}: {said}"
    return EnvError(text + (_form_of(call, said) or hint))


def _form_of(call: str, said: str) -> str:
    """What Gymnasium wants of ``call``, where an error sounds as if the environment were of its predecessor Gym."""
    if call == "step" and "values to unpack (expected 5" in said:
        return ". Gymnasium's step() returns five: observation, reward, terminated, truncated, info"
    if call == "reset" and "values to unpack (expected 2" in said:
        return ". Gymnasium's reset() returns two: observation, info"
    if call == "reset" and "unexpected keyword argument" in said:
        return ". Gymnasium's reset() takes seed= and options="
    return ""
