"""Rollout workers and policy workers, stepped by hand: what is written is what happened, whoever dies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from decision_trace import Teller
from served_envs import ENVS, WORKERS, Recorder, check_stream, config_for, spec_of

from apexrl.config import Config
from apexrl.errors import AgentError
from apexrl.links.local.inference import InferenceLink
from apexrl.protocols import Acted
from apexrl.roles import PolicyWorker, RolloutWorker
from apexrl.roles.actor import VERSION
from apexrl.roles.env_worker import split_sizes
from apexrl.roles.rollout_worker import reply_fields, request_fields
from apexrl.shared.weights_board import InlineWeights
from apexrl.spec import Field


class Recurrent(Teller):
    """A teller whose state is recorded as a recurrent agent's is: once per item, as it was before the step."""

    step_spec = {**Teller.step_spec, "count": Field((), "int64", per_item=True)}  # noqa: RUF012

    def act(self, observations: Any, state: Any, exploration: Any, greedy: bool = False) -> Acted:
        acted = super().act(observations, state, exploration, greedy)
        return Acted(acted.actions, acted.extras | {"count": state["count"]}, acted.state)


class System:
    """Rollout workers and policy workers over one link, stepped by hand, that may die between any two steps."""

    def __init__(
        self, stage: Any, monkeypatch: pytest.MonkeyPatch, config: Config, policies: int = 1, agent: Any = None
    ) -> None:
        self.stage, self.config, self.agent = stage, config, agent or Recurrent()
        monkeypatch.setattr("apexrl.agents.agent_class", lambda name: lambda *args: self.agent)
        self.spec = spec_of(config)
        self.link = InferenceLink.make(
            shared=False,
            request=request_fields(self.spec, Recurrent.step_spec),
            reply=reply_fields(self.spec, Recurrent.step_spec),
            workers=WORKERS,
            splits=split_sizes(ENVS, config.wiring.splits),
            servers=policies,
        )
        self.replay = Recorder()
        self.weights = InlineWeights()
        self.weights.publish({"w": np.array([1.0], np.float32)}, 1)
        self.policies = [self.new_policy(index) for index in range(policies)]
        self.generations = [0] * WORKERS
        self.workers = [self.new_worker(index) for index in range(WORKERS)]

    def new_policy(self, index: int) -> PolicyWorker:
        context = self.stage.context("policy_worker", index)
        settings: dict[str, Any] = {"config": self.config, "spec": self.spec}
        return PolicyWorker(context, **settings, inference=self.link, weights=self.weights)

    def new_worker(self, index: int) -> RolloutWorker:
        context = self.stage.context("rollout_worker", index, seed=index + 1)
        context.generation = self.generations[index]
        settings: dict[str, Any] = {"config": self.config, "spec": self.spec}
        return RolloutWorker(context, **settings, inference=self.link, replay=self.replay)

    def turn(self) -> None:
        """Everybody does what there is to do."""
        for role in (*self.workers, *self.policies):
            while role.step():
                pass

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.turn()

    def streams(self) -> list[list[dict[str, Any]]]:
        return [rows for writer in self.replay.writers for _, rows in sorted(writer.rows.items()) if rows]

    def check(self) -> int:
        """Every stream is one environment's, without a hole, and with the recurrent state before every step."""
        for rows in self.streams():
            assert [int(row["count"]) for row in rows] == [int(row["told"]) % 1_000_000 for row in rows]
        return sum(check_stream(rows) for rows in self.streams())


@pytest.mark.parametrize("policies", [1, 2])
@pytest.mark.parametrize("splits", [1, 2, 3])
@pytest.mark.parametrize("vector", ["sync", "threads"])
def test_every_step_is_written_once_in_order_with_its_own_action(
    stage: Any, monkeypatch: pytest.MonkeyPatch, splits: int, vector: str, policies: int
) -> None:
    system = System(stage, monkeypatch, config_for(splits=splits, vector=vector), policies)
    system.turns(40)
    streams = system.streams()
    assert sorted(int(rows[0]["observation"][0]) for rows in streams) == list(range(WORKERS * ENVS))
    steps = system.check()
    assert steps == stage.run.totals["env_steps"] > 150
    for worker in system.workers:
        worker.close()
    assert all(writer.closed for writer in system.replay.writers)
    assert stage.run.totals["episodes"] == sum(len(values["returns"]) for values in stage.values("episodes")) > 20


@pytest.mark.parametrize("policies", [1, 2])
def test_a_policy_worker_that_dies_takes_nothing_with_it(
    stage: Any, monkeypatch: pytest.MonkeyPatch, policies: int
) -> None:
    """Not a step, and no recurrent state: streams go on as if nothing had been."""
    system = System(stage, monkeypatch, config_for(), policies)
    for generation in range(5):
        system.turns(8)
        for worker in system.workers:  # all have asked, and nobody has answered
            while worker.step():
                pass
        system.policies[generation % policies] = system.new_policy(generation % policies)
    system.turns(8)
    assert len(system.streams()) == WORKERS * ENVS
    assert system.check() == stage.run.totals["env_steps"] > 180


def test_a_rollout_worker_that_dies_begins_anew_and_others_do_not_notice(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = System(stage, monkeypatch, config_for())
    system.turns(20)
    while system.workers[0].step():
        pass
    system.generations[0] = 1
    system.workers[0] = system.new_worker(0)  # the old one's requests are there yet
    system.turns(20)
    assert len(system.replay.writers) == WORKERS + 1
    assert len(system.streams()) == (WORKERS + 1) * ENVS
    system.check()
    lengths = [len(rows) for rows in system.replay.writers[1].rows.values()]
    assert lengths == [39] * ENVS  # a step of every turn but the first, in which actions were chosen


def test_where_the_replay_takes_no_more_that_worker_waits_and_nothing_is_lost(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = System(stage, monkeypatch, config_for())
    system.turns(10)
    full, other = system.replay.writers
    full.refusing = True
    system.turns(20)
    made = stage.run.totals["env_steps"]
    assert {len(rows) for rows in full.rows.values()} == {9}
    assert {len(rows) for rows in other.rows.values()} == {29}
    system.turns(5)
    assert 0 < stage.run.totals["env_steps"] - made <= 5 * ENVS  # the other's: this one's environments stand
    full.refusing = False
    system.turns(20)
    assert {len(rows) for rows in full.rows.values()} == {30}  # with the step that was in hand
    assert system.check() == stage.run.totals["env_steps"]


def test_steps_carry_the_version_that_chose_them(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    system = System(stage, monkeypatch, config_for())
    system.turns(4)
    system.weights.publish({"w": np.array([9.0], np.float32)}, 9)
    system.turns(4)
    assert system.agent.version == 9
    for rows in system.streams():
        assert [int(row[VERSION]) for row in rows] == [1] * 4 + [9] * 3


def test_actions_are_random_until_something_is_learned(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_for()
    system = System(stage, monkeypatch, replace(config, actor=replace(config.actor, random_start=True)))
    system.turns(4)
    system.weights.publish({"w": np.array([2.0], np.float32)}, 2)
    system.turns(4)
    for rows in system.streams():
        assert np.isinf([row["explored"] for row in rows]).tolist() == [True] * 4 + [False] * 3


def test_frames_are_seen_stacked_and_written_once(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    system = System(stage, monkeypatch, config_for(stack=3))
    seen: list[Any] = []
    act = system.agent.act

    def noted(observations: Any, *rest: Any) -> Any:
        seen.append(observations["observation"].copy())
        return act(observations, *rest)

    monkeypatch.setattr(system.agent, "act", noted)
    system.turns(40)
    system.check()  # of single frames
    assert sum(len(windows) for windows in seen) == 40 * WORKERS * ENVS
    for windows in seen:
        assert windows.shape[1:] == (3, 3)
        ages = windows[:, :, 2]
        np.testing.assert_array_equal(ages, np.maximum(ages[:, -1:] - np.arange(3)[::-1], 0))
        assert (windows[:, :, :2] == windows[:, -1:, :2]).all()


def test_nobody_is_answered_before_there_are_weights(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    system = System(stage, monkeypatch, config_for())
    system.weights = InlineWeights()
    system.policies = [system.new_policy(0)]
    system.turns(3)
    assert stage.run.totals["env_steps"] == system.agent.acted == 0
    system.weights.publish({"w": np.array([1.0], np.float32)}, 1)
    system.turns(3)
    assert stage.run.totals["env_steps"] > 0


def test_an_agent_whose_state_is_not_recorded_is_refused(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(Recurrent):
        def act(self, *args: Any, **settings: Any) -> Acted:
            acted = super().act(*args, **settings)
            return Acted(acted.actions, acted.extras, {**(acted.state or {}), "more": acted.actions})

    system = System(stage, monkeypatch, config_for(), agent=Forgetful())
    with pytest.raises(AgentError, match=r"state \['count', 'more'\], and its step_spec has \['count'\] as Field"):
        system.turns(1)


def test_what_policy_workers_say_of_their_batches(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    system = System(stage, monkeypatch, config_for(), policies=2)
    system.turns(30)
    for policy in system.policies:
        policy.close()
    said = stage.values("inference")
    assert said
    assert {values["batch"] for values in said} == {2 * WORKERS, 1 * WORKERS}  # groups of 2, and groups of 1
    assert all(values["wait_ms"] >= 0.0 for values in said)
    assert stage.run.totals["batches"] == len(system.agent.batches)
