"""What the launcher's tests share: an observer that remembers and may act, small runs, and who is still alive."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from apexrl.config import (
    ActorConfig,
    AgentConfig,
    Config,
    EnvConfig,
    EvaluatorConfig,
    LearnerConfig,
    ReplayConfig,
    StopConfig,
)
from apexrl.run import checkpoint
from apexrl.run.status import RunStatus

Act = Callable[[RunStatus], bool | None]


@dataclass
class Watcher:
    """An observer that remembers, and that may act on every status."""

    act: Act = lambda status: None
    texts: list[str] = field(default_factory=list)
    statuses: list[RunStatus] = field(default_factory=list)
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    folder: Path = Path()

    def started(self, config: Config, folder: Path) -> None:
        self.folder = folder

    def update(self, status: RunStatus) -> bool | None:
        self.statuses.append(status)
        return self.act(status)

    def event(self, kind: str, values: dict[str, Any]) -> None:
        self.events.append((kind, values))

    def message(self, text: str, level: str = "info") -> None:
        self.texts.append(text)

    def finished(self, summary: dict[str, Any]) -> None:
        self.summary = summary

    def said(self, kind: str) -> list[dict[str, Any]]:
        """The values of all events of one kind."""
        return [values for name, values in self.events if name == kind]


def arrays_of(config: Config) -> dict[str, Any]:
    """What the newest checkpoint of a run holds."""
    found = checkpoint.load_latest(Path(config.out) / config.name / "checkpoints")
    assert found is not None
    return dict(found.arrays)


def small(tmp_path: Path, *, env: Any = "CartPole-v1", stop: StopConfig | None = None, **env_kwargs: Any) -> Config:
    """A run that starts learning within a second."""
    return Config(
        name="run",
        out=str(tmp_path),
        env=EnvConfig(env=env, env_kwargs=env_kwargs),
        agent=AgentConfig(hidden=(16,), target_period_updates=50),
        replay=ReplayConfig(capacity=5000, min_size=100, updates_per_step=0.25),
        actor=ActorConfig(actors=2, envs_per_actor=4, pull_period=20, env_timeout=30.0),
        learner=LearnerConfig(batch_size=16, publish_period_updates=5, checkpoint_seconds=0.5),
        evaluator=EvaluatorConfig(eval_episodes=4, eval_envs=2, eval_period_seconds=0.5),
        stop=stop or StopConfig(env_steps=1500),
    )


def with_actors(config: Config, **changes: Any) -> Config:
    return replace(config, actor=replace(config.actor, **changes))


def with_learner(config: Config, **changes: Any) -> Config:
    return replace(config, learner=replace(config.learner, **changes))


def gone(pid: int) -> bool:
    """Whether nothing runs under ``pid``: no process, or a zombie that nobody has collected yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return Path("/proc/self").exists()


def all_gone(pids: Iterable[int], seconds: float = 30.0) -> bool:
    """Whether nothing runs under any of ``pids``, at the latest after so long: killed is not yet dead."""
    left, deadline = set(pids), time.monotonic() + seconds
    while left := {pid for pid in left if not gone(pid)}:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
