"""A replay filled with a dataset holds every step, with n-step returns, ends and final observations as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from corridor_data import corridor_episodes, write_corridor

from apexrl.datasets.episode import Episode
from apexrl.datasets.filling import VERSION, filled_replay
from apexrl.datasets.minari_files import Dataset
from apexrl.errors import DatasetError
from apexrl.replay import Replay
from apexrl.spec import ActionSpec, EnvSpec, Field

FIELDS = {
    "observation": Field((), "int64"),
    "action": Field((), "int64"),
    "version": Field((), "int64"),
    "q": Field((2,), "float32", sampled=False),
}
GAMMA, STEPS = 0.9, 3


def rows_of(episodes: list[Episode]) -> list[tuple[float, ...]]:
    """What n-step transitions of these are, by hand: (s, a, R, d, s')."""
    found = []
    for one in episodes:
        seen = one.observation["observation"]
        for t in range(one.steps):
            until = min(t + STEPS, one.steps)
            total = sum(GAMMA**k * float(one.reward[t + k]) for k in range(until - t))
            ended = until == one.steps and bool(one.terminated[-1])
            discount = 0.0 if ended else GAMMA ** (until - t)
            found.append((int(seen[t]), int(one.action[t]), round(total, 5), round(discount, 5), int(seen[until])))
    return sorted(found)


def drawn(replay: Replay) -> Any:
    """Every item, once."""
    found = {}
    for _ in range(400):
        batch = replay.sample(64, beta=0.0)
        for row, key in enumerate(batch.keys.tolist()):
            found[key] = (
                int(batch.data["observation"][row]),
                int(batch.data["action"][row]),
                round(float(batch.data["reward"][row]), 5),
                round(float(batch.data["discount"][row]), 5),
                int(batch.data["next_observation"][row]),
            )
        assert (batch.data["version"] == VERSION).all()
        if len(found) == len(replay):
            return sorted(found.values())
    raise AssertionError(f"{len(found)} of {len(replay)} were drawn")


def test_every_step_is_there_once(tmp_path: Path) -> None:
    episodes = corridor_episodes(12, limit=5)
    assert any(one.truncated[-1] for one in episodes)
    assert any(one.terminated[-1] for one in episodes)
    where = str(write_corridor(tmp_path / "d", episodes))
    options = {"fields": FIELDS, "kind": "transition", "n_step": STEPS, "gamma": GAMMA, "alpha": 0.0, "eps": 1e-6}
    with filled_replay(where, Dataset(where).spec, "version", 0.0, **options) as replay:
        assert len(replay) == sum(one.steps for one in episodes)
        found = drawn(replay)
    # a terminated transition's later state is not read, but it is the recorded one
    assert [row[:4] for row in found] == [row[:4] for row in rows_of(episodes)]
    assert [row for row in found if row[3]] == [row for row in rows_of(episodes) if row[3]]


def test_one_episode_of_one_step_with_clipped_rewards(tmp_path: Path) -> None:
    episode = next(one for one in corridor_episodes(60) if one.steps == 1 and one.reward[0] == 1.0)
    where = str(write_corridor(tmp_path / "d", [episode]))
    options = {"fields": FIELDS, "kind": "transition", "n_step": 1, "gamma": GAMMA, "alpha": 0.0, "eps": 1e-6}
    with filled_replay(where, Dataset(where).spec, "version", 0.25, **options) as replay:
        batch = replay.sample(4)
        assert batch.data["reward"].tolist() == [0.25] * 4
        assert batch.data["discount"].tolist() == [0.0] * 4


def test_a_dataset_of_another_environment_is_refused(tmp_path: Path) -> None:
    where = str(write_corridor(tmp_path / "d", corridor_episodes(2)))
    spec = EnvSpec({"observation": Field((4,), "float32")}, ActionSpec(n=2))
    with pytest.raises(
        DatasetError, match=r"dataset .* of Corridor-v0 does not fit the environment: it has observation"
    ):
        filled_replay(where, spec, "version", 0.0, fields=FIELDS, kind="transition")
