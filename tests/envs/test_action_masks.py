"""Masks of possible actions, from every place where environments tell them, and what is refused."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import agent_toys
from apexrl.config import EnvConfig
from apexrl.envs import make_env, make_vector
from apexrl.envs.action_masks import ActionMasks, VectorActionMasks, random_action
from apexrl.envs.board_games import BoardGame
from apexrl.envs.native_rows import NativeRows
from apexrl.envs.players import random_actions
from apexrl.envs.toy import Doors
from apexrl.envs.vector import VectorEnv
from apexrl.errors import EnvError, SpecError
from apexrl.spec import ACTION_MASK, ActionSpec, EnvSpec, Field

DOORS = "apexrl.envs.toy:Doors-v0"


def doors(told: str, rows: int = 1, **more: Any) -> EnvConfig:
    return EnvConfig(env=DOORS, env_kwargs={"told": told, "rows": rows, **more}, mask_in_info=told == "info")


def possible(masks: Any, rows: int, rng: np.random.Generator) -> Any:
    """Random possible actions, of masks [B, rows · doors]."""
    chosen = [
        [int(rng.choice(np.flatnonzero(part))) for part in np.split(mask, rows)] for mask in np.asarray(masks, np.bool_)
    ]
    return np.array(chosen)[:, 0] if rows == 1 else np.array(chosen)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("told", ["method", "info", "key"])
@pytest.mark.parametrize("vector", ["sync", "threads"])
def test_a_mask_is_part_of_the_observation_wherever_it_is_told(vector: Any, told: str, rows: int) -> None:
    env = make_vector(doors(told, rows), 3, 5, vector)
    try:
        assert env.spec.masked
        assert env.spec.observation[ACTION_MASK].shape == (10 * rows,)
        assert len(env.spec.without_mask().observation) == 1
        rng, seen, invalid, lengths = np.random.default_rng(0), env.reset(), [], []
        for _ in range(30):
            masks = seen[ACTION_MASK]
            assert masks.dtype == np.bool_
            assert (masks.reshape(3, rows, 10).sum(axis=2) <= 3).all()
            alive = masks.reshape(3, rows, 10).any(axis=2).all(axis=1)  # behind a termination nothing is asked
            actions = possible(np.where(alive[:, None], masks, True), rows, rng)
            stepped = env.step(actions)
            seen = stepped.observation
            assert (alive | stepped.starts).all()
            invalid += [episode.metrics["invalid_actions"] for episode in stepped.episodes]
            lengths += [episode.length for episode in stepped.episodes]
        assert lengths == [8] * 9
        assert not any(invalid)
    finally:
        env.close()


def test_what_is_unmasked_has_no_mask_and_no_wrapper() -> None:
    env = make_env(doors("nowhere"))
    assert not isinstance(env, ActionMasks)
    vector = make_vector(doors("nowhere"), 1, 0)
    assert not vector.spec.masked
    assert vector.spec.without_mask() is vector.spec


class Unread(gym.Env[Any, Any]):
    """Tells a mask in its info, and bears no other action."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, action: gym.Space[Any] | None = None) -> None:
        self.action_space = action or gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {"action_mask": np.array([1, 0], np.int8)}

    def step(self, action: Any) -> Any:
        if action == 1:
            raise ValueError("1 is impossible")
        return np.zeros(2, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize("vector", ["sync", "threads"])
def test_a_mask_that_nobody_reads_is_noticed(vector: Any) -> None:
    for read, action, noticed in (
        (False, None, True),
        (False, gym.spaces.MultiBinary(1), True),
        (True, None, False),
        (False, gym.spaces.Box(-1, 1, (1,)), False),
    ):
        env = make_vector(EnvConfig(env=Unread, env_kwargs={"action": action}, mask_in_info=read), 2, 0, vector)
        try:
            env.reset()
            assert env.ignores_mask == noticed
            if noticed and action is None:
                with pytest.raises(
                    EnvError, match=r"1 is impossible \(its info tells masks .* --mask-in-info heeds them"
                ):
                    env.step(np.ones(2, np.int64))
        finally:
            env.close()


class Told(gym.Env[Any, Any]):
    """Tells what it is given, one mask after the other, without end."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, masks: Any, action: gym.Space[Any], ends: tuple[bool, bool] = (False, False)) -> None:
        self.action_space, self._masks, self._ends = action, list(masks), ends

    def action_masks(self) -> Any:
        return self._masks.pop(0) if len(self._masks) > 1 else self._masks[0]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 0.0, *self._ends, {}


def told(masks: Any, action: gym.Space[Any] | None = None, **more: Any) -> VectorEnv:
    return make_vector(EnvConfig(env=lambda: Told(masks, action or gym.spaces.Discrete(3), **more)), 2, 0)


NONE, ALL, SOME = np.zeros(3, np.int8), np.ones(3, np.int8), np.array([False, True, False])


def test_multi_discrete_and_multi_binary_masks_come_side_by_side_or_as_a_tuple() -> None:
    multi = gym.spaces.MultiDiscrete([2, 3])
    for mask in ((np.array([1, 0]), np.array([0, 1, 1])), np.array([1, 0, 0, 1, 1], np.bool_), [1, 0, 0, 1, 1]):
        assert told([mask], multi).reset()[ACTION_MASK].tolist() == [[True, False, False, True, True]] * 2
    assert told([np.array([1, 1, 0, 1])], gym.spaces.MultiBinary(2)).reset()[ACTION_MASK].shape == (2, 4)


def test_a_mask_that_leaves_nothing_says_which_environment_and_step() -> None:
    with pytest.raises(EnvError, match=r"\(number 0 of this actor\) masks every action at a reset: a mask must leave"):
        told([NONE]).reset()
    env = told([ALL, SOME, NONE])
    env.reset()
    env.step(np.zeros(2, np.int64))
    with pytest.raises(EnvError, match="masks every action behind step 2 of its episode"):
        env.step(np.zeros(2, np.int64))
    split = told([np.array([1, 1, 0, 0, 0])], gym.spaces.MultiDiscrete([2, 3]))
    with pytest.raises(EnvError, match="masks every alternative of a choice at a reset"):
        split.reset()
    cut = told([ALL, NONE], ends=(False, True))
    cut.reset()
    with pytest.raises(EnvError, match="masks every action where its episode was truncated"):
        cut.step(np.zeros(2, np.int64))


@pytest.mark.parametrize("actions", [4, 3000])  # with few and with many bytes
def test_zeros_at_the_end_of_a_mask_and_at_the_start_of_the_next_leave_actions(actions: int) -> None:
    def alternating(nothing: bool) -> VectorEnv:
        first, last = np.arange(actions) == 0, np.arange(actions) == actions - 1
        masks, action = (first, last, last & (not nothing)), gym.spaces.Discrete(actions)
        numbers = iter(range(2))
        return make_vector(EnvConfig(env=lambda: Told(masks[next(numbers) :], action)), 2, 0, "sync")

    env = alternating(nothing=False)
    assert env.reset()[ACTION_MASK].any(axis=1).all()
    env.step(np.array([0, actions - 1]))
    env = alternating(nothing=True)
    env.reset()
    with pytest.raises(EnvError, match=r"number 1 of this actor\) masks every action behind step 1"):
        env.step(np.array([0, actions - 1]))


class Fails(Doors):
    """As Doors, until the mask behind its third step is none."""

    def __init__(self, told: str, fault: str) -> None:
        super().__init__(told=told)
        self._fault = fault

    def _mask(self) -> Any:
        mask: Any = super()._mask()
        if self._round != 3:
            return mask
        return {"nothing": np.zeros_like(mask), "shape": mask[:-1], "missing": None}[self._fault]

    def _show(self) -> Any:
        return self._left_out(super()._show())

    def _info(self) -> Any:
        return self._left_out(super()._info())

    def _left_out(self, shown: Any) -> Any:
        if isinstance(shown, dict) and "action_mask" in shown and shown["action_mask"] is None:
            del shown["action_mask"]
        return shown


@pytest.mark.parametrize("fault", ["nothing", "shape", "missing"])
@pytest.mark.parametrize("told", ["method", "info", "key"])
@pytest.mark.parametrize("vector", ["sync", "threads", "vectorised"])
def test_a_mask_that_is_none_later_is_an_error_and_no_action(vector: Any, told: str, fault: str) -> None:
    config = EnvConfig(env=lambda: Fails(told, fault), mask_in_info=told == "info")
    if vector == "vectorised":
        made: Any = gym.vector.SyncVectorEnv([lambda: Fails(told, fault)] * 2)
        if told != "key":
            made = VectorActionMasks(made, in_info=told == "info")
        env: Any = VectorEnv(NativeRows(made, "Fails"), "Fails")
    else:
        env = make_vector(config, 2, 0, vector)
    seen = env.reset()
    says = {
        "nothing": "masks every action behind step 3",
        "shape": r"mask.*\[(2, )?9\]|could not broadcast|Output array is the wrong shape",
        "missing": "action_mask|told an action mask of|masks every action behind step 3",
    }
    with pytest.raises(EnvError, match=says[fault]):
        for _ in range(4):
            seen = env.step(seen[ACTION_MASK].argmax(axis=1)).observation
    env.close()


@pytest.mark.parametrize("turns", [False, True])
def test_nobody_who_is_not_learned_acts_under_a_mask_that_leaves_nothing(
    turns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if turns:
        config = EnvConfig(env="apexrl.envs.board_games:env", learned_agents=("second",))
        monkeypatch.setattr(BoardGame, "legal", lambda self: np.zeros(0, np.int64))
    else:
        monkeypatch.setattr(agent_toys, "parallel_env", Fallers)
        monkeypatch.setattr(Fallers, "_mask", lambda self, agent: np.ones(3, np.int8) * (agent == "a"))
        config = EnvConfig(env="agent_toys:parallel_env", learned_agents=("a",))
    env = make_vector(config, 1, 0)
    with pytest.raises(EnvError, match=r"masks every action of agent '(first|b)', which is to act: a mask must leave"):
        env.step(env.reset()[ACTION_MASK].argmax(axis=1))
    env.close()


def test_random_opponents_of_several_choices_take_possible_ones() -> None:
    action = ActionSpec(shape=(2,), nvec=(2, 3), starts=(0, 0))
    spec = EnvSpec({"observation/x": Field((1,), "float32"), ACTION_MASK: Field((5,), "bool")}, action)
    mask = np.array([[0, 1, 0, 1, 0], [1, 0, 0, 0, 1]], np.bool_)
    drawn = random_actions(np.random.default_rng(0), spec, {ACTION_MASK: mask}, 2)
    assert drawn.tolist() == [[1, 1], [0, 2]]


def test_behind_a_termination_no_mask_is_asked_for() -> None:
    env = told([ALL, NONE], ends=(True, False))
    env.reset()
    stepped = env.step(np.zeros(2, np.int64))
    assert not stepped.observation[ACTION_MASK].any()
    assert stepped.terminated.all()


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        (np.ones(4, np.int8), r"told an action mask of int8 \[4\]; its 3 actions take bool, .* of shape \[3\]"),
        (np.ones((1, 3), np.int8), r"told an action mask of int8 \[1, 3\]"),
        (np.ones(3, np.float32), r"told an action mask of float32 \[3\]; its 3 actions take bool"),
        ("abc", r"told an action mask of <U3 \[\]"),
        (None, r"told an action mask of object \[\]"),
    ],
)
def test_a_mask_of_another_shape_or_kind_is_refused(mask: Any, says: str) -> None:
    with pytest.raises(EnvError, match=says):
        told([mask]).reset()


def test_masks_that_cannot_be_are_refused_when_environments_are_made() -> None:
    with pytest.raises(EnvError, match=r"actions are a box of shape \(1,\): masks are for discrete actions"):
        make_env(EnvConfig(env="Pendulum-v1", mask_in_info=True))
    with pytest.raises(EnvError, match=r"has no method action_masks\(\): masks in infos need in_info=True"):
        ActionMasks(gym.make("CartPole-v1"))
    with pytest.raises(EnvError, match="info has no 'action_mask', which --mask-in-info says is there"):
        make_vector(EnvConfig(env="CartPole-v1", mask_in_info=True), 1, 0).reset()

    class Keyed(Doors):
        def __init__(self, space: gym.Space[Any], action: gym.Space[Any]) -> None:
            super().__init__()
            self.observation_space, self.action_space = gym.spaces.Dict(x=self.observation_space), action
            self.observation_space["action_mask"] = space

    box, three = gym.spaces.Box(0, 1, (3,), np.float32), gym.spaces.Discrete(3)
    assert make_vector(EnvConfig(env=lambda: Keyed(box, three)), 1, 0).spec.masked
    for space, action, says in (
        (gym.spaces.Box(-1, 1, (3,)), three, "a mask of possible actions is a Box of 0 to 1 or a MultiBinary"),
        (gym.spaces.Discrete(3), three, "a mask of possible actions is a Box of 0 to 1 or a MultiBinary"),
        (gym.spaces.MultiBinary(4), three, r"has shape \[4\]; the actions 3 take \[3\]"),
        (gym.spaces.MultiBinary(3), gym.spaces.Box(-1, 1, (3,)), "actions are a box: masks are for discrete actions"),
        (gym.spaces.MultiBinary(3), gym.spaces.Tuple((three, box)), "choices and 3 numbers at once: masks are for"),
    ):
        with pytest.raises(SpecError, match=says):
            make_vector(EnvConfig(env=lambda space=space, action=action: Keyed(space, action)), 1, 0)


@pytest.mark.parametrize("told", ["method", "info", "key"])
@pytest.mark.parametrize("lockstep", [True, False])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_vectorised_environments_tell_masks_in_every_autoreset_mode(
    mode: AutoresetMode, lockstep: bool, told: str
) -> None:
    """No closed door is taken, not even in the step that nobody sees."""

    def make(num_envs: int = 1) -> gym.vector.VectorEnv[Any, Any, Any]:
        return gym.vector.SyncVectorEnv([lambda: Doors(told=told)] * num_envs, autoreset_mode=mode)

    made: Any = make(3)
    singles = [one.unwrapped for one in made.envs]
    if told != "key":
        made = VectorActionMasks(made, in_info=told == "info")
    env = VectorEnv(NativeRows(made, "Doors", lockstep=lockstep), "Doors")
    rng, seen = np.random.default_rng(0), env.reset(3)
    which: Any = np.arange(3) if not env.lockstep else None
    for _ in range(40):
        masks = seen[ACTION_MASK]
        alive = masks.any(axis=1)
        env.send(possible(np.where(alive[:, None], masks, True), 1, rng), which)
        stepped = env.receive(1, 1.0)
        while stepped is None:
            stepped = env.receive(1, 1.0)
        seen, which = stepped.observation, stepped.which
        for single in singles:
            assert mode is AutoresetMode.NEXT_STEP or single._invalid == 0
        assert all(episode.metrics["invalid_actions"] == 0 for episode in stepped.episodes)
    env.close()


def test_a_vectorised_form_is_made_with_masks_or_is_not_taken() -> None:
    made = make_vector(
        EnvConfig(env=lambda num_envs: gym.vector.SyncVectorEnv([Doors] * num_envs)), 2, 0
    )  # it has no other form
    assert made.spec.masked
    assert made.reset()[ACTION_MASK].sum() == 6
    made.close()


def test_random_actions_are_possible_ones() -> None:
    spaces: list[tuple[gym.Space[Any], list[int], Any]] = [
        (gym.spaces.Discrete(3), [0, 1, 0], 1),
        (gym.spaces.MultiDiscrete([2, 3]), [0, 1, 0, 0, 1], [1, 2]),
        (gym.spaces.MultiBinary(2), [0, 1, 1, 0], [1, 0]),
    ]
    for space, mask, only in spaces:
        for _ in range(5):
            assert np.array_equal(random_action(space, {"action_mask": np.array(mask, np.bool_)}), only)
    assert random_action(gym.spaces.Discrete(1), np.zeros(2)) == 0


class Fallers:
    """Three agents in PettingZoo's convention, which end one after the other; who has ended has no possible action."""

    possible_agents = ("a", "b", "c")

    def __init__(self) -> None:
        self.agents: list[str] = []
        self._time = 0

    def observation_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Dict(observation=gym.spaces.Box(0, 9, (1,)), action_mask=gym.spaces.Box(0, 1, (3,), np.int8))

    def action_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self._time = list(self.possible_agents), 0
        return {agent: self._seen(agent, False) for agent in self.agents}, {}

    def step(self, actions: dict[str, int]) -> Any:
        for agent, action in actions.items():
            assert self._mask(agent)[action], (agent, action)
        self._time += 1
        ends = {agent: self._time > self.possible_agents.index(agent) for agent in actions}
        self.agents = [agent for agent, ended in ends.items() if not ended]
        nothing = dict.fromkeys(actions, False)
        shown = {agent: self._seen(agent, ended) for agent, ended in ends.items()}
        return shown, dict.fromkeys(actions, 1.0), ends, nothing, {agent: {} for agent in actions}

    def close(self) -> None: ...

    def _mask(self, agent: str) -> Any:
        return np.eye(3, dtype=np.int8)[(self._time + self.possible_agents.index(agent)) % 3]

    def _seen(self, agent: str, ended: bool) -> dict[str, Any]:
        return {"observation": np.array([self._time], np.float32), "action_mask": self._mask(agent) * (not ended)}


def test_several_agents_have_masks_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_toys, "parallel_env", Fallers)
    env = make_vector(EnvConfig(env="agent_toys:parallel_env"), 3, 0)
    seen, played = env.reset(), 0
    for _ in range(12):
        stepped = env.step(seen[ACTION_MASK].argmax(axis=1))
        seen, played = stepped.observation, played + stepped.steps
    assert played == 18  # 1 + 2 + 3 steps in every four, the last of which is the reset
    env.close()
