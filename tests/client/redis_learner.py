"""The learner's end of a run, in the test's own hands: its place on the server, its intake, replay and weights."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from apexrl.config import ActorConfig, AgentConfig, Config, EnvConfig, HostsConfig, ReplayConfig
from apexrl.errors import LinkError
from apexrl.launch.redis_run import make_record
from apexrl.links.local.role_context import InlineContext, InlineRun, WorkerIdentity
from apexrl.links.redis.run_record import LearnerDigest, LearnerLease, Orders
from apexrl.links.redis.server import Server
from apexrl.replay import Replay
from apexrl.replay.chunks import Receipts
from apexrl.roles import Intake
from apexrl.shared.weights_board import WeightsBoard
from apexrl.spec import ActionSpec, EnvSpec, Field
from apexrl.topologies import Probe, topology
from apexrl.topologies.host_cut import learner_side

RUN = "test"
TRUST = ("counting_agent",)
SPEC = EnvSpec({"observation": Field((2,), "float32")}, ActionSpec(n=2))
CONFIG = Config(
    agent=AgentConfig(agent="counting_agent:CountingAgent", n_step=2, gamma=0.5),
    actor=ActorConfig(epsilon=0.5, pull_period=1, actor_slots=3),
    env=EnvConfig(env="not_here:Never-v0"),
    replay=ReplayConfig(capacity=10_000, min_size=1),
    hosts=HostsConfig(send_period=0.02, learner_lease_seconds=10.0),
)


class LearnerSide:
    def __init__(
        self, url: str, config: Config = CONFIG, spec: EnvSpec = SPEC, record: dict[str, Any] | None = None
    ) -> None:
        server = Server(url)
        seen = Probe(spec, {"q": Field((2,), "float32", sampled=False)}, 64)
        whole = topology(config.topology)(config, seen)
        identity: Any = SimpleNamespace(name=RUN, run_id=str(uuid.uuid4()))
        told = make_record(config, identity, whole, seen)
        told = msgspec.structs.replace(told, **(record or {}))
        self.place = LearnerLease.take(server, told, config.hosts.learner_lease_seconds, replace=True)
        self.said: list[tuple[str, dict[str, Any]]] = []
        run = InlineRun(
            lambda name, kind, values: self.said.append((kind, values)), steps_per_second=1.0, real_time=True
        )
        self.totals = run.totals
        context = InlineContext(run, WorkerIdentity("intake-0", "intake", 0, 0, 0, Path()))
        side = learner_side(whole, {})
        (intake,) = (node for node in side.nodes if node.name == "intake")
        self.replay = Replay(**intake.ports["queue_0"].options)
        self.weights = WeightsBoard(4096)
        self._intake = Intake(
            context,
            config=config,
            server=server,
            keys=self.place.keys,
            run_id=told.run_id,
            replays=[self.replay],
            weights=self.weights,
            receipts=Receipts(),
            streams=intake.ports["streams"],
        )
        self.intake_goes = True
        self._renew_at = 0.0

    def publish(self, version: int) -> None:
        self.weights.publish({"w": np.array([version], np.float32)}, version)

    def turn(self) -> None:
        """What its processes would do in a moment."""
        now = time.monotonic()
        if now >= self._renew_at:
            self._renew_at = now + 0.5
            with suppress(LinkError):
                self.orders: Orders = self.place.renew(
                    LearnerDigest(weights_version=self.weights.version, env_steps=self.totals["env_steps"])
                )
        if not self.intake_goes:
            time.sleep(0.01)
        elif not self._intake.step():
            time.sleep(0.001)

    def until(self, what: str, true: Callable[[], Any], timeout: float = 240.0) -> Any:
        end = time.monotonic() + timeout
        while not (found := true()):
            assert time.monotonic() < end, f"{what}: not within {timeout:g} s"
            self.turn()
        return found

    def values(self, kind: str) -> list[dict[str, Any]]:
        return [values for name, values in self.said if name == kind]

    def items(self) -> dict[str, Any]:
        """All that the replay holds: the observation's first number -> (reward, discount, next observation's first)."""
        found: dict[float, tuple[float, ...]] = {}
        for _ in range(60):
            data = self.replay.sample(64, beta=0.0, timeout=5.0).data
            columns = (data["observation"], data["reward"], data["discount"], data["next_observation"])
            for seen, reward, discount, later in zip(*columns, strict=True):
                found[float(seen.flat[0])] = float(reward), float(discount), float(later.flat[0])
        return found  # type: ignore[return-value]

    def close(self) -> None:
        try:
            self._intake.close()
        finally:
            self.place.leave()
            self.replay.close()


def with_hosts(**changes: Any) -> Config:
    return replace(CONFIG, hosts=replace(CONFIG.hosts, **changes))
