"""``--anneal``: whoever learns tells its agent, before every update, how far the run is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from recording_observer import Watcher, small

from apexrl.agents import with_agent
from apexrl.agents.actor_critic import ActorCritic
from apexrl.agents.unroll_batch import Unrolls
from apexrl.config import Config, StopConfig
from apexrl.config.convert import override
from apexrl.errors import AgentError
from apexrl.launch import launch
from apexrl.protocols import Learned

STEPS = 600


class Told(ActorCritic):
    """Notes what it is told, and the step size with which it then learns."""

    heard: ClassVar[list[float]] = []
    sizes: ClassVar[list[float]] = []

    def anneal(self, progress: float) -> None:
        super().anneal(progress)
        self.heard.append(progress)

    def update(self, prepared: Unrolls) -> Learned:
        self.sizes.append(self._network.optimizer.learning_rate)
        return super().update(prepared)


class Deaf(ActorCritic):
    anneal = None  # type: ignore[assignment]


def config_of(tmp_path: Path, topology: str, agent: str) -> Config:
    config = replace(small(tmp_path, stop=StopConfig(env_steps=STEPS)), serial=True, topology=topology)
    settings = {"anneal": True, "learning_rate": 1e-3, "unroll_length": 5, "batch_size": 4, "agent": agent}
    return override(with_agent(config, "impala"), settings)


@pytest.mark.parametrize("topology", ["impala", "a3c", "ga3c", "seed", "sample_factory"])
def test_the_step_size_falls_to_nothing_by_the_end(topology: str, tmp_path: Path) -> None:
    Told.heard, Told.sizes = [], []
    summary = launch(config_of(tmp_path, topology, "test_anneal:Told"), [Watcher()])
    assert len(Told.heard) >= summary["updates"] > 10
    assert Told.heard == sorted(Told.heard)
    assert 0.0 < Told.heard[0] < 0.2
    assert 0.9 < Told.heard[-1] <= 1.0
    if topology in ("impala", "seed", "sample_factory"):
        assert Told.sizes == pytest.approx([1e-3 * (1.0 - progress) for progress in Told.heard])


def test_an_agent_that_cannot_be_told_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match=r"--anneal needs an agent with anneal\(progress\), which Deaf has not"):
        launch(config_of(tmp_path, "impala", "test_anneal:Deaf"), [Watcher()])
