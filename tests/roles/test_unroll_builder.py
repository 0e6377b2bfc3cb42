"""Unrolls built by a worker are those that a fifo replay would have given for the same steps."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from state_checking_agent import Clock

from apexrl.config import ActorConfig, Config, EnvConfig
from apexrl.envs import make_vector
from apexrl.errors import AgentError
from apexrl.protocols import Acted, Arrays, State
from apexrl.replay import Replay
from apexrl.roles.actor import step_fields
from apexrl.roles.env_player import EnvPlayer
from apexrl.roles.unroll_builder import UnrollBuilder
from apexrl.spec import ActionSpec, EnvSpec, Field

ENVS, GAMMA = 3, 0.9
EXTRAS = {
    "stream": Field((), "int64"),
    "log_prob": Field((2,), "float32"),
    "memory": Field((2,), "float32", per_item=True),
    "unread": Field((), "float32", sampled=False),
}


class Drifting(Clock):
    """Episodes of other lengths in every environment: they end in different rows."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._episode = seed % 7
        return super().reset(seed=seed)


class Scribe:
    """Records which environment it acts in, something random, and a state that counts."""

    step_spec: ClassVar = EXTRAS

    def __init__(self) -> None:
        self._rng = np.random.default_rng(5)

    def act(self, observations: Arrays, state: State, exploration: Any, greedy: bool = False) -> Acted:
        rows = len(exploration)
        memory = np.zeros((rows, 2), np.float32) if state is None else state["memory"]
        extras = {
            "stream": np.arange(rows),
            "log_prob": self._rng.random((rows, 2), np.float32),
            "memory": memory,
            "unread": np.ones(rows, np.float32),
        }
        return Acted(self._rng.integers(2, size=rows), extras, {"memory": memory + 1.0})


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("length", [1, 5, 16])
@pytest.mark.parametrize("vector", ["sync", "threads"])
def test_the_same_steps_give_the_same_unrolls_as_in_a_fifo_replay(
    stage: Any, stack: int, length: int, vector: Any
) -> None:
    env = EnvConfig(env=Drifting, stack=stack)
    config = Config(env=env, actor=ActorConfig(actors=1, envs_per_actor=ENVS, vector=vector))
    with_spec = make_vector(env, 1, 0)
    spec = with_spec.spec
    with_spec.close()
    fields = step_fields(spec, EXTRAS)
    context = stage.context("worker")
    context.patience = 5.0
    player = EnvPlayer(context, config, spec, lambda _: Scribe(), seed=1)  # type: ignore[arg-type,return-value]
    builder = UnrollBuilder(ENVS, length, spec, fields, GAMMA)
    replay = Replay(
        1000, fields, kind="unroll", length=length, sampler="fifo", stack=stack, gamma=GAMMA, writers=1, streams=ENVS
    )
    writer = replay.writer(streams=ENVS)
    built: list[dict[str, Any]] = []
    rows = 80
    for row in range(rows):
        assert player.seen is not None
        builder.see(player.seen)
        player.act(row // length + 1)
        steps = player.collect(least=ENVS)
        assert steps is not None
        writer.append(steps)
        builder.append(steps, player.starts)
        if builder.full:
            assert player.seen is not None
            builder.see(player.seen)
            batch = builder.batch()
            assert batch.keys.shape == batch.weights.shape == (ENVS,)
            assert set(batch.weights.tolist()) == {1.0}
            built.append({name: np.array(value) for name, value in batch.data.items()})
            builder.again()
    player.close()
    expected = (rows - 1) // length  # the replay waits for the row behind the last
    drawn = replay.sample(expected * ENVS)
    order = np.argsort(drawn.data["stream"][:, 0], kind="stable")  # of one stream, the order of time
    assert len(built) in (expected, expected + 1)
    for name, value in drawn.data.items():
        theirs = value[order].reshape(ENVS, expected, *value.shape[1:])
        ours = np.stack([data[name] for data in built[:expected]], axis=1)
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_array_equal(ours, theirs, err_msg=name)
    assert set(built[0]) == set(drawn.data)
    masks = np.stack([data["mask"] for data in built])
    assert 0.05 < 1.0 - masks.mean() < 0.5  # final observations were met
    replay.close()


def test_a_field_that_the_bootstrap_observation_would_need_is_refused() -> None:
    spec = EnvSpec({"observation": Field((1,), "float32")}, ActionSpec(n=2))
    fields = step_fields(spec, {"value": Field((), "float32", windowed=True)})
    with pytest.raises(AgentError, match="'value' is windowed"):
        UnrollBuilder(1, 4, spec, fields, GAMMA)


def test_the_environments_here_end_in_either_way() -> None:
    env: gym.Env[Any, Any] = Drifting()
    env.reset(seed=1)
    ends = set()
    for _ in range(60):
        _, _, terminated, truncated, _ = env.step(0)
        if terminated or truncated:
            ends.add((terminated, truncated))
            env.reset()
    assert ends == {(True, False), (False, True)}
