"""Environment workers and their inference server over one link, stepped by hand, and a replay that keeps every row."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from decision_trace import Numbered, Teller

from apexrl.config import ActorConfig, AgentConfig, Config, EnvConfig, WiringConfig
from apexrl.envs import make_vector
from apexrl.errors import WaitTimeout
from apexrl.links.local.inference import InferenceLink
from apexrl.roles import EnvWorker, InferenceServer
from apexrl.roles.env_worker import reply_fields, request_fields, split_sizes
from apexrl.shared.weights_board import InlineWeights
from apexrl.spec import EnvSpec

WORKERS, ENVS = 2, 3  # of each


def config_for(stack: int = 1, vector: Any = "sync", splits: int = 2, **wiring: Any) -> Config:
    return Config(
        agent=AgentConfig(hidden=(8,)),
        actor=ActorConfig(actors=WORKERS, envs_per_actor=ENVS, vector=vector),
        env=EnvConfig(env=Numbered, env_kwargs={"numbers": itertools.count()}, stack=stack),
        wiring=WiringConfig(splits=splits, **wiring),
    )


def spec_of(config: Config) -> EnvSpec:
    env = make_vector(replace(config.env, env_kwargs={}), 1, 0)
    env.close()
    return env.spec


class Stream:
    """One writer: the rows of its streams."""

    def __init__(self) -> None:
        self.rows: dict[int, list[dict[str, Any]]] = defaultdict(list)
        self.refusing = False
        self.closed = False

    def append(self, steps: dict[str, Any], streams: Any = None, timeout: float = 10.0) -> None:
        assert not self.closed
        if self.refusing:
            raise WaitTimeout("full")
        assert {len(values) for values in steps.values()} == {len(streams)}
        for row, stream in enumerate(streams):
            self.rows[stream].append({name: np.array(value[row]) for name, value in steps.items()})

    def close(self) -> None:
        self.closed = True


class Recorder:
    """A replay that keeps what its writers are given, writer by writer."""

    def __init__(self) -> None:
        self.writers: list[Stream] = []

    def writer(self, streams: int, priority_fn: Any) -> Stream:
        assert streams == ENVS
        self.writers.append(Stream())
        return self.writers[-1]


class System:
    """Workers and a server over one link, stepped by hand, that may die between any two steps."""

    def __init__(self, stage: Any, monkeypatch: pytest.MonkeyPatch, config: Config, agent: Any = None) -> None:
        self.stage, self.config = stage, config
        self.agent = agent or Teller()
        if agent is None:
            monkeypatch.setattr("apexrl.agents.agent_class", lambda name: lambda *args: self.agent)
        self.spec = spec_of(config)
        self.link = InferenceLink.make(
            shared=False,
            request=request_fields(self.spec),
            reply=reply_fields(self.spec),
            workers=WORKERS,
            splits=split_sizes(ENVS, config.wiring.splits),
        )
        self.inference: Any = self.link  # as workers have it
        self.replay: Any = Recorder()
        self.weights = InlineWeights()
        self.weights.publish({"w": np.array([1.0], np.float32)}, 1)
        self.server = self.new_server()
        self.generations = [0] * WORKERS
        self.workers = [self.new_worker(index) for index in range(WORKERS)]

    def new_server(self) -> InferenceServer:
        context = self.stage.context("inference_server")
        return InferenceServer(
            context,
            config=self.config,
            spec=self.spec,
            inference=self.link,
            replay=self.replay,
            weights=self.weights,
        )

    def new_worker(self, index: int) -> EnvWorker:
        context = self.stage.context("env_worker", index, seed=index + 1)
        context.generation = self.generations[index]
        return EnvWorker(context, config=self.config, spec=self.spec, inference=self.inference)

    def kill_worker(self, index: int) -> None:
        self.generations[index] += 1
        self.workers[index] = self.new_worker(index)

    def turn(self) -> None:
        """Everybody does what there is to do."""
        for worker in self.workers:
            while worker.step():
                pass
        while self.server.step():
            pass

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.turn()

    def streams(self) -> list[list[dict[str, Any]]]:
        return [rows for writer in self.replay.writers for _, rows in sorted(writer.rows.items()) if rows]


def check_stream(rows: list[dict[str, Any]], begins_anew: bool = True) -> int:
    """A stream is one environment's own, without a hole: returns its steps without final observations."""
    number = int(rows[0]["observation"][0])
    if begins_anew:
        assert rows[0]["observation"][2] == 0
    count, steps, final = 0, 0, False
    for row, after in zip(rows, [*rows[1:], None], strict=True):
        here = row["observation"]
        assert int(row["told"]) == number * 1_000_000 + count  # decided there, with the state of that episode
        count += 1
        ended = bool(row["terminated"] or row["truncated"])
        if final:  # of an episode: action ignored, no reward
            assert row["reward"] == 0.0
            assert not ended
            there = [number, here[1] + 1, 0]
        else:
            steps += 1
            there = [number, here[1], here[2] + 1]
            assert row["reward"] == 100.0 * number + there[2] + 0.125 * row["action"]  # the action that arrived
            assert ended == (there[2] == 2 + (number + here[1]) % 6)
        if after is not None:
            assert after["observation"].tolist() == there
        if final:
            count = 0
        final = ended
    return steps


def check_continued(rows: list[dict[str, Any]]) -> None:
    """A stream that a new server began in the midst of an episode, with a state that counts from there."""
    at = next((i for i, row in enumerate(rows) if row["observation"][2] == 0), len(rows))
    if at:
        number = int(rows[0]["observation"][0])
        assert [int(row["told"]) for row in rows[:at]] == [number * 1_000_000 + count for count in range(at)]
        for row, after in itertools.pairwise(rows[: at - 1]):
            assert after["observation"].tolist() == (row["observation"] + [0, 0, 1]).tolist()
            assert row["reward"] == 100.0 * number + after["observation"][2] + 0.125 * row["action"]
    if rows[at:]:
        check_stream(rows[at:])
