"""An agent on the small game (``signal_envs``), with the actor and the replay that a run would give it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from signal_envs import Asked, Matching, Shown
from torch import Tensor, nn

from apexrl.agents import AGENTS, agent_class, with_agent
from apexrl.config import Config, EnvConfig
from apexrl.config.convert import override
from apexrl.envs import FrameStack, make_vector
from apexrl.launch.probe import probe
from apexrl.links.local.role_context import InlineContext, InlineRun, WorkerIdentity
from apexrl.protocols import Agent, Arrays, State
from apexrl.replay import Batch, Replay
from apexrl.roles import Actor
from apexrl.shared.weights_board import WeightsBoard
from apexrl.spec import Array, EnvSpec
from apexrl.topologies.replay_links import prioritized

SMALL: dict[str, Any] = {
    "hidden": (16,),
    "critic_hidden": (),
    "image_units": 16,
    "recurrent_units": 8,
    "n_step": 2,
    "atoms": 11,
    "v_min": 0.0,
    "v_max": 8.0,
    "quantiles": 8,
    "quantile_samples": 4,
    "cosines": 8,
    "sequence_length": 4,
    "sequence_stride": 2,
    "burn_in": 2,
    "unroll_length": 4,
    "minibatches": 2,  # of those agents that have several
    "target_period_updates": 3,
    "capacity": 2_000,
    "min_size": 20,
    "updates_per_step": 0.0,
    "trim_every": 1,
    "batch_size": 8,
    "actors": 1,
    "envs_per_actor": 4,
    "alpha": 0.6,  # so that actors compute priorities, whoever the agent is
}
"""Settings with which an update takes a millisecond or so."""


def asks(name: str) -> tuple[Asked, ...]:
    """The kinds of actions that an agent is for, as the catalogue says."""
    words: dict[Asked, str] = {"discrete": "Discrete", "multi": "MultiDiscrete", "box": "Box"}
    return tuple(kind for kind, word in words.items() if word in AGENTS[name].needs)


def config_of(name: str, shown: Shown = "vector", asked: Asked | None = None, **changes: Any) -> Config:
    env = EnvConfig(
        env=Matching,
        env_kwargs={"shown": shown, "asked": asked or asks(name)[0]},
        stack=2 if shown == "image" else 1,
    )
    own = AGENTS[name].settings
    small = {key: value for key, value in SMALL.items() if key != "n_step" or key not in own}
    small["policy_period_updates"] = min(3, own.get("policy_period_updates", 1))  # a few are made
    small["minibatches"] = min(small["minibatches"], own.get("minibatches", 1))
    topology = "impala" if AGENTS[name].item == "unroll" else "apex"
    return override(replace(with_agent(Config(topology=topology), name), env=env), {**small, **changes})


class Marked(nn.Module):
    """An encoder of the user's own, whose parameters are known by their name."""

    features = 5

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.marked = nn.Linear(int(np.prod(spec.observation["observation"].shape)), self.features)

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        return torch.relu(self.marked(observation["observation"]))


@dataclass(frozen=True)
class Given:
    """A sampled batch that a test may change (``protocols.Sampled``)."""

    data: dict[str, Array]
    keys: NDArray[np.uint64]
    weights: NDArray[np.float32]

    @classmethod
    def of(cls, batch: Batch) -> Given:
        return cls({name: np.array(value) for name, value in batch.data.items()}, batch.keys, np.array(batch.weights))


class Game:
    """Experience of one agent: recorded by an actor with random weights, in a replay as Ape-X wires it. Unrolls too,
    which no topology draws at random."""

    def __init__(self, name: str, shown: Shown, asked: Asked, **changes: Any) -> None:
        self.name = name
        self.config = config_of(name, shown, asked, **changes)
        seen = probe(self.config)
        self.spec: EnvSpec = seen.spec
        self.replay = Replay(**prioritized(self.config, seen))
        self.recorded: list[tuple[dict[str, Array], Array]] = []  # items, and what the agent said of them
        board = WeightsBoard(seen.weights_nbytes)
        board.publish(self.agent(seed=7).weights(), 2)  # something has been learned: no random start
        run = InlineRun(lambda name, kind, values: None, steps_per_second=1.0)
        context = InlineContext(run, WorkerIdentity("actor-0", "actor", 0, 0, 1, Path()))
        actor = Actor(context, config=self.config, spec=self.spec, replay=_Noting(self), weights=board)  # type: ignore[arg-type]
        for _ in range(40):
            assert actor.step()
        actor.close()

    def agent(self, seed: int = 1) -> Agent:
        agent: Agent = agent_class(self.config.agent.agent)(self.spec, self.config.agent, "cpu", seed)
        return agent

    def batches(self, count: int) -> list[Given]:
        return [Given.of(self.replay.sample(8, beta=0.4, timeout=5.0)) for _ in range(count)]

    def seen(self, rows: int, seed: int = 0) -> dict[str, Array]:
        """First observations of so many environments, stacked where the agent sees stacks."""
        env = make_vector(self.config.env, rows, seed)
        observation = env.reset()
        env.close()
        return FrameStack(self.spec.stack, rows, self.spec.observation).push(observation)

    def close(self) -> None:
        self.replay.close()


class _Noting:
    """A replay whose writer notes the priorities that an agent computes."""

    def __init__(self, game: Game) -> None:
        self._game = game

    def writer(self, streams: int, priority_fn: Any) -> Any:
        if priority_fn is None:  # of unrolls
            return self._game.replay.writer(streams=streams)

        def noted(items: Mapping[str, Array]) -> Array:
            priorities: Array = priority_fn(items)
            self._game.recorded.append((copied(items), priorities))
            return priorities

        return self._game.replay.writer(streams=streams, priority_fn=noted)


def act(agent: Agent, seen: Arrays, exploration: float = 0.3, greedy: bool = False, state: State = None) -> Any:
    rows = len(next(iter(seen.values())))
    return agent.act(seen, state, np.full(rows, exploration, np.float32), greedy=greedy)


def same(one: Mapping[str, Any], two: Mapping[str, Any]) -> bool:
    """Whether named arrays are equal to the last bit."""
    return one.keys() == two.keys() and all(
        np.asarray(one[name]).dtype == np.asarray(two[name]).dtype and np.array_equal(one[name], two[name])
        for name in one
    )


def copied(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name: np.array(value) for name, value in arrays.items()}
