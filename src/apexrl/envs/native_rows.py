"""Environments that are vectorised by themselves, with any autoreset mode of Gymnasium."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from apexrl.envs.action_masks import MASK, first_possible
from apexrl.envs.action_spaces import action_spec
from apexrl.envs.host_arrays import HostArrays, brings_tensors
from apexrl.envs.lockstep import Bools, EnvCall, Rows, Which, blame, refuse_not_finite
from apexrl.envs.spaces import LIMIT, Leaf, flatten_observation, observation_leaves, one_of
from apexrl.envs.told_metrics import row_metrics
from apexrl.errors import EnvError, SpecError
from apexrl.space_values import LengthLimit
from apexrl.spec import ACTION_MASK, Array

Numbers = NDArray[np.int64]


class NativeRows:
    """A ``gymnasium.vector.VectorEnv``, which steps all of its environments or none: ``send`` makes the step.

    With NEXT_STEP autoreset its rows are the environment's. With SAME_STEP and DISABLED the row of a reset is made
    here, and no environment may step before the agent has chosen for all. Where environments need not go in lock-step,
    ``receive`` then yields the rows of the resets alone, and the step of all is made when their actions have come: no
    step is lost. In lock-step these environments take one step with the action that was meant to be ignored: the
    episode is seen from behind that step on, and its reward counts nowhere. Where there are masks it is the
    first possible action.

    Args:
        env: its ``metadata["autoreset_mode"]`` says which mode it has; without it, NEXT_STEP. One that brings tensors
            (``HostArrays``) has many environments, and goes in lock-step.
        name: of the environment, for errors.
        call: entered around every call.
        lockstep: whether all environments must be in every answer.
        info_metrics: keys of its infos that are told of an episode (``row_metrics``).

    Attributes:
        device: where the simulator's tensors lie; empty: it brings arrays.
        tensors: what the agent sees next as the simulator brought it, name -> [B, ...], until the next ``send``.
    """

    def __init__(
        self,
        env: gym.vector.VectorEnv[Any, Any, Any],
        name: str,
        call: EnvCall = nullcontext,
        lockstep: bool = True,
        info_metrics: Sequence[str] = (),
        limit: LengthLimit = LIMIT,
    ) -> None:
        self._info_metrics = info_metrics
        self.device, self.tensors = "", dict[str, Any]()
        self._copied = False  # answers are copies already
        if brings_tensors(env):
            env = HostArrays(env)
            self.device, self._copied, lockstep = env.device, env.copies, True
        self._env, self._name, self._call = env, name, call
        self._mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self.lockstep = lockstep or self._mode is AutoresetMode.NEXT_STEP
        self.num_envs = env.num_envs
        self.observation_space, self.action_space = env.single_observation_space, env.single_action_space
        self.leaves = observation_leaves(self.observation_space, limit)
        self._actions_of = action_spec(self.action_space)
        if self.device and (varying := [leaf.name for leaf in self.leaves if leaf.padded]):
            raise SpecError(f"{name} brings tensors, and {varying[0]} is of variable length: bring arrays")
        self.ignores_mask = False  # as of ``lockstep.Single``
        self._begun: dict[str, Array] = {}  # observations after resets of SAME_STEP, [B, ...]
        self._actions: Array | None = None  # of who has one, while others are still to choose
        self._chosen = np.zeros(self.num_envs, np.bool_)
        self._rows: Rows | None = None

    def reset(self, seeds: Sequence[int]) -> dict[str, Array]:
        each = isinstance(self._env.unwrapped, gym.vector.SyncVectorEnv | gym.vector.AsyncVectorEnv)
        with self._call(), blame(self._name, "reset"):
            seen, info = self._env.reset(seed=list(seeds) if each else seeds[0])  # type: ignore[arg-type]
        takes_mask = not (self._actions_of.box or self._actions_of.hybrid)
        self.ignores_mask = takes_mask and MASK in info and all(leaf.name != ACTION_MASK for leaf in self.leaves)
        self._rows = None
        self._chosen[:] = False
        named = self._named(seen)
        self._keep_tensors(named)
        return named

    def send(self, actions: Array, starting: Bools, which: Which = None) -> None:
        with self._call(), blame(self._name, "step"):
            ready: Array | None = actions
            if not self.lockstep:
                ready = self._when_all_have_chosen(actions, starting, which)
            elif self._mode is not AutoresetMode.NEXT_STEP and starting.any():
                begun = self._begun if self._mode is AutoresetMode.SAME_STEP else self._reset(starting)
                ready = self._possible(actions, starting, begun)
            if ready is not None:
                self._rows = self._answered(self._env.step(self._actions_of.in_form(ready)), starting)

    def receive(self, least: int = 1, timeout: float = 0.0) -> Rows | None:
        rows, self._rows = self._rows, None
        if rows is not None:
            refuse_not_finite(rows, self.leaves, self._name)
        return rows

    def close(self) -> None:
        with self._call(), blame(self._name, "close"):
            self._env.close()

    def _possible(self, actions: Array, starting: Bools, begun: Mapping[str, Array]) -> Array:
        """``actions``, but those of steps that nobody sees such as the masks of what has begun leave."""
        if ACTION_MASK not in begun:
            return actions
        actions = actions.copy()
        actions[starting] = first_possible(action_spec(self.action_space), begun[ACTION_MASK][starting])
        return actions

    def _answered(self, answer: tuple[Any, Any, Any, Any, dict[str, Any]], starting: Bools) -> Rows:
        """The rows of a step of all."""
        seen, reward, terminated, truncated, infos = answer
        named = self._named(seen)
        if self._mode is AutoresetMode.SAME_STEP and (terminated | truncated).any():
            self._begun = {name: array.copy() for name, array in named.items()}
            self._put_final(named, np.flatnonzero(terminated | truncated), truncated, infos)
        told = self._told(np.flatnonzero(terminated | truncated), infos)
        rows = Rows(named, np.asarray(reward, np.float64), terminated, truncated, None, metrics=told)
        if not self.lockstep:
            return rows._replace(which=np.arange(self.num_envs))
        if self._mode is AutoresetMode.NEXT_STEP:
            self._keep_tensors(named)
            return rows
        rows = self._unseen(rows, starting)
        self._keep_tensors(named, rows.terminated | rows.truncated)
        return rows

    def _told(self, ended: Numbers, infos: Mapping[str, Any]) -> dict[int, dict[str, float]]:
        """What the infos of ``ended`` environments tell of their episodes."""
        if not len(ended):
            return {}
        final = infos.get("final_info") if self._mode is AutoresetMode.SAME_STEP else None
        return row_metrics(final if isinstance(final, Mapping) else infos, self._info_metrics, ended.tolist())

    def _unseen(self, rows: Rows, starting: Bools) -> Rows:
        """The rows of a step that nobody sees of those that ``starting`` says."""
        ended = starting & (rows.terminated | rows.truncated)
        if ended.any():
            begun = self._begun if self._mode is AutoresetMode.SAME_STEP else self._reset(ended)
            for name, array in rows.observation.items():
                array[ended] = begun[name][ended]
        return rows._replace(
            reward=np.where(starting, 0.0, rows.reward),
            terminated=rows.terminated & ~starting,
            truncated=rows.truncated & ~starting,
        )

    def _when_all_have_chosen(self, actions: Array, starting: Bools, which: Which) -> Array | None:
        """The actions of all, when all have some; None: not yet. Where environments begin, their rows are answered."""
        numbers = np.arange(self.num_envs) if which is None else which
        if self._actions is None:
            self._actions = np.empty((self.num_envs, *actions.shape[1:]), actions.dtype)
        self._actions[numbers] = actions
        self._chosen[numbers] = ~starting
        if starting.any():
            begins, mask = numbers[starting], np.zeros(self.num_envs, np.bool_)
            mask[begins] = True
            begun = self._begun if self._mode is AutoresetMode.SAME_STEP else self._reset(mask)
            nothing = np.zeros(len(begins), np.bool_)
            seen = {name: array[begins] for name, array in begun.items()}
            self._rows = Rows(seen, np.zeros(len(begins)), nothing, nothing.copy(), None, begins)
        if not self._chosen.all():
            return None
        self._chosen[:] = False
        return self._actions

    def _reset(self, mask: Bools) -> dict[str, Array]:
        return self._named(self._env.reset(options={"reset_mask": mask})[0])

    def _named(self, seen: Any) -> dict[str, Array]:
        # An actor holds an observation until after the next step, and some environments write into the same array.
        flat = flatten_observation(self.leaves, seen)
        return flat if self._copied else {name: array.copy() for name, array in flat.items()}

    def _keep_tensors(self, named: Mapping[str, Array], replaced: Bools | None = None) -> None:
        """Keep what the simulator brought; of ``replaced`` environments it brought something later than ``named``."""
        if not isinstance(self._env, HostArrays):
            return
        import torch

        rows = np.flatnonzero(replaced) if replaced is not None else ()
        for leaf in self.leaves:
            tensor = leaf.of(self._env.seen).to(getattr(torch, leaf.field.dtype))
            if leaf.start:
                tensor = tensor - leaf.start
            if len(rows):
                tensor = tensor.clone()
                tensor[torch.as_tensor(rows, device=self.device)] = torch.as_tensor(
                    named[leaf.name][rows], device=self.device
                )
            self.tensors[leaf.name] = tensor

    def _put_final(self, named: dict[str, Array], ended: Numbers, truncated: Bools, infos: Mapping[str, Any]) -> None:
        """Write the final observations of ``ended`` over those of the resets behind them."""
        final = infos.get("final_obs")
        if final is None:
            if truncated.any():
                raise EnvError(
                    f"{self._name} truncates episodes and resets in the same step, but its infos have no 'final_obs': "
                    "what came last is unknown, and so is what it was worth. Let it put them there, or make it with "
                    "another autoreset mode"
                )
            return  # a terminal state is worth nothing
        for leaf in self.leaves:
            for number in ended.tolist():
                value = _one(final, leaf, number)
                one_of(leaf, value, named, number)


def _one(final: Any, leaf: Leaf, number: int) -> Any:
    """A leaf of one environment, of a batch of observations or of an array of single ones."""
    return leaf.of(final)[number] if isinstance(final, Mapping) else leaf.of(final[number])
