"""One policy for several agents, in every topology: what is recorded of agents that end early or appear late."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apexrl.agents import with_agent
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.errors import ConfigError
from apexrl.launch import launch
from apexrl.replay.writer import Writer
from apexrl.roles.unroll_builder import UnrollBuilder
from apexrl.run.metrics import read_rows

RANDOM: dict[str, Any] = {"epsilon": 1.0, "epsilon_alpha": 0.0, "updates_per_step": 0.5}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "apex": ("dueling_dqn", RANDOM),
    "gorila": ("dqn", RANDOM | {"learners": 2, "parameter_servers": 2}),
    "impala": ("impala", {}),
    "a3c": ("a2c", {}),
    "ga3c": ("a2c", {}),
    "seed": ("impala", {}),
    "sample_factory": ("appo", {}),
}


def several(topology: str, out: Path, **changes: Any) -> Config:
    agent, own = RUNS[topology]
    return override(
        with_agent(Config(topology=topology), agent),
        {
            "env": "agent_toys:parallel_env",
            "env_kwargs": {"lengths": {"short": 2, "long": 6, "late": 3}, "late": {"late": 2}},
            "serial": True, "out": str(out), "name": "run", "env_steps": 600, "hidden": (16,), "unroll_length": 8,
            "batch_size": 8, "min_size": 64, "updates_per_step": 0.0, "actors": 2, "envs_per_actor": 6,
            "learning_rate": 1e-3, "eval_episodes": 6, "eval_period_seconds": 1e6, "capacity": 1_000, **own, **changes,
        },
    )  # fmt: skip


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> dict[Any, list[tuple[Any, float, bool]]]:
    """What every stream was written: observation, reward, whether it ended here."""
    found: dict[Any, list[tuple[Any, float, bool]]] = {}
    append, see = Writer.append, UnrollBuilder.append

    def note(who: Any, values: Any, row: int, stream: int) -> None:
        ended = bool(values["terminated"][row] or values["truncated"][row])
        step = np.array(values["observation"][row]), float(values["reward"][row]), ended
        found.setdefault((id(who), stream), []).append(step)

    def written(self: Writer, values: Any, streams: Any = None, timeout: float = 10.0) -> None:
        append(self, values, streams, timeout)
        for row, stream in enumerate(range(len(values["reward"])) if streams is None else streams):
            note(self, values, row, stream)

    def built(self: UnrollBuilder, steps: Any, final: Any) -> None:
        see(self, steps, final)
        mask = self._mask[:, self._row - 1]
        for row in range(len(final)):
            if mask[row] or (final[row] and self._seen_end(row)):
                note(self, steps, row, row)

    def seen_end(self: UnrollBuilder, row: int) -> bool:
        """Of masked rows of an unroll the one behind an end is noted, as a final observation."""
        earlier = found.get((id(self), row))
        return bool(earlier and earlier[-1][2])

    monkeypatch.setattr(Writer, "append", written)
    monkeypatch.setattr(UnrollBuilder, "append", built)
    monkeypatch.setattr(UnrollBuilder, "_seen_end", seen_end, raising=False)
    return found


@pytest.mark.parametrize("topology", RUNS)
def test_every_stream_is_one_agents_and_has_its_steps_alone(
    topology: str, tmp_path: Path, streams: dict[Any, list[tuple[Any, float, bool]]]
) -> None:
    launch(several(topology, tmp_path))
    assert len(streams) >= 12
    lengths = {0: 2, 1: 6, 2: 3}
    agents, episodes = set(), 0
    for steps in streams.values():
        number = int(steps[0][0][2])
        agents.add(number)
        begins = True
        for (seen, reward, ended), (later, _, _) in pairwise(steps):
            position, length, whose, time = seen
            assert whose == number, "a stream is one agent's"
            assert length == lengths[number]
            if begins:
                assert (position, time) == (0, 2 if number == 2 else 0)
            begins = False
            if later[3] == time + 1:  # a step
                assert later[0] == position + reward
                assert ended == (later[0] >= length or later[3] >= 9)
            else:  # a final observation, and behind it an episode begins
                assert (later[0], later[3]) == (0, 2 if number == 2 else 0)
                assert position >= length or time >= 9
                assert reward == 0.0
                assert not ended
                begins, episodes = True, episodes + 1
    assert agents == {0, 1, 2}
    assert episodes > 20
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    told = {name for row in rows for name in row if "return/" in name}
    assert {f"episode/return/{agent}_mean" for agent in ("short", "long", "late")} <= told


def test_rows_must_be_whole_environments(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--envs-per-actor 4 counts agents.*has 3.*--envs-per-actor 6"):
        launch(several("apex", tmp_path, envs_per_actor=4))
