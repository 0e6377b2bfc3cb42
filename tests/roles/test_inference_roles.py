"""Environment workers and their inference server, stepped by hand: what is written is what happened."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from served_envs import ENVS, WORKERS, System, check_stream, config_for, spec_of
from state_checking_agent import Clock, Remembering

from apexrl.agents import agent_class
from apexrl.agents.exploration import epsilon_ladder
from apexrl.config import AgentConfig, Config, EnvConfig, ReplayConfig
from apexrl.config.convert import override
from apexrl.replay import Replay
from apexrl.roles.actor import VERSION, step_fields
from apexrl.roles.env_worker import group_sizes, split_sizes, with_own_groups
from apexrl.shared.weights_board import InlineWeights


@pytest.mark.parametrize("splits", [1, 2, 3, 5])
@pytest.mark.parametrize("vector", ["sync", "threads"])
def test_every_step_is_written_once_in_order_with_its_own_action(
    stage: Any, monkeypatch: pytest.MonkeyPatch, splits: int, vector: str
) -> None:
    system = System(stage, monkeypatch, config_for(splits=splits, vector=vector))
    system.turns(60)
    assert len(system.replay.writers) == WORKERS
    streams = system.streams()
    assert sorted(int(rows[0]["observation"][0]) for rows in streams) == list(range(WORKERS * ENVS))
    steps = sum(check_stream(rows) for rows in streams)
    # Every environment has made a step more than it was told the results of.
    assert 0 <= stage.run.totals["env_steps"] - steps <= WORKERS * ENVS
    assert steps > 200
    for worker in system.workers:
        worker.close()
    system.server.close()
    assert all(writer.closed for writer in system.replay.writers)
    assert stage.run.totals["episodes"] == sum(len(values["returns"]) for values in stage.values("episodes")) > 30


def test_each_environment_keeps_its_rung_of_the_ladder(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    system = System(stage, monkeypatch, config_for())
    system.turns(5)
    ladder = epsilon_ladder(WORKERS * ENVS, 0.4, 7.0)
    for worker, writer in enumerate(system.replay.writers):
        for env, rows in writer.rows.items():
            assert {float(row["explored"]) for row in rows} == {float(ladder[env * WORKERS + worker])}


def test_steps_carry_the_version_that_chose_them_and_the_newest_chooses(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = System(stage, monkeypatch, config_for())
    system.turns(4)
    system.weights.publish({"w": np.array([9.0], np.float32)}, 9)
    system.turns(4)
    assert system.agent.version == 9
    for rows in system.streams():
        assert [int(row[VERSION]) for row in rows] == [1] * 4 + [9] * (len(rows) - 4)
        assert len(rows) > 4


def test_nobody_is_answered_before_there_are_weights(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    system = System(stage, monkeypatch, config_for())
    system.weights = InlineWeights()
    system.server = system.new_server()
    system.turns(3)
    assert stage.run.totals["env_steps"] == system.agent.acted == 0
    system.weights.publish({"w": np.array([1.0], np.float32)}, 1)
    system.turns(3)
    assert stage.run.totals["env_steps"] > 0


def test_actions_are_random_until_something_is_learned(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_for()
    system = System(stage, monkeypatch, replace(config, actor=replace(config.actor, random_start=True)))
    system.turns(4)
    system.weights.publish({"w": np.array([2.0], np.float32)}, 2)
    system.turns(4)
    for rows in system.streams():
        explored = np.array([row["explored"] for row in rows])
        assert np.isinf(explored[:4]).all()
        assert np.isfinite(explored[4:]).all()


@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_batches_hold_as_many_as_they_may_and_everybody_has_a_turn(
    stage: Any, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    system = System(stage, monkeypatch, config_for(inference_batch=most))  # groups of 2 and 1
    system.turns(30)
    assert all(size <= max(2, most) for size in system.agent.batches)  # a group is never cut
    lengths = [len(rows) for rows in system.streams()]
    assert len(lengths) == WORKERS * ENVS
    assert max(lengths) - min(lengths) <= 1
    for rows in system.streams():
        check_stream(rows)


def test_groups_take_turns_where_not_all_fit(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    system = System(stage, monkeypatch, config_for(inference_batch=2))
    for worker in system.workers:
        while worker.step():
            pass
    served = []
    for _ in range(4):
        before = system.link.answered_words.copy()
        assert system.server.step()
        served.append(np.flatnonzero(system.link.answered_words != before).tolist())
        for worker in system.workers:  # whoever was answered asks again, and does not come before the others
            while worker.step():
                pass
    assert served == [[0], [1], [2], [3]]


def test_a_worker_whose_steps_are_refused_waits_and_the_other_goes_on(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = System(stage, monkeypatch, config_for())
    system.turns(5)
    blocked, free = system.replay.writers
    blocked.refusing = True
    before = [len(rows) for rows in blocked.rows.values()], [len(rows) for rows in free.rows.values()]
    system.turns(20)
    assert [len(rows) for rows in blocked.rows.values()] == before[0]
    assert all(len(rows) >= then + 19 for rows, then in zip(free.rows.values(), before[1], strict=True))
    blocked.refusing = False
    system.turns(20)
    assert all(len(rows) >= then + 19 for rows, then in zip(blocked.rows.values(), before[0], strict=True))
    assert len(system.replay.writers) == WORKERS
    for rows in system.streams():
        check_stream(rows)


@pytest.mark.parametrize("stack", [1, 3])
def test_frames_are_seen_stacked_and_stored_once(stage: Any, monkeypatch: pytest.MonkeyPatch, stack: int) -> None:
    config = config_for(stack=stack)
    system = System(stage, monkeypatch, config)
    agent, n = system.agent, 3
    seen: list[Any] = []
    act = agent.act

    def noted(observations: Any, *rest: Any) -> Any:
        seen.append(observations["observation"].copy())
        return act(observations, *rest)

    agent.act = noted
    with Replay(
        kind="transition",
        fields=step_fields(system.spec, agent.step_spec),
        capacity=4000,
        stack=stack,
        n_step=n,
        gamma=0.5,
        writers=WORKERS,
        streams=WORKERS * ENVS,
    ) as replay:
        system.replay = replay
        system.server = system.new_server()
        system.turns(300)
        system.server.close()
        batch = replay.sample(1024)
        now = batch.data["observation"].reshape(1024, stack, 3)
        later = batch.data["next_observation"].reshape(1024, stack, 3)
        numbers, episodes = now[:, -1, 0], now[:, -1, 1]
        assert set(numbers.tolist()) == set(range(WORKERS * ENVS))
        for window in (now, later):  # of one environment, one episode, and in order; before its start the first frame
            assert (window[:, :, :2] == now[:, -1:, :2]).all()
            ages = window[:, :, 2]
            np.testing.assert_array_equal(ages, np.maximum(ages[:, -1:] - np.arange(stack)[::-1], 0))
        left = 2 + (numbers + episodes) % 6 - now[:, -1, 2]
        np.testing.assert_array_equal(later[:, -1, 2] - now[:, -1, 2], np.minimum(left, n))
    for windows in seen:
        frames = windows.reshape(len(windows), stack, 3)
        np.testing.assert_array_equal(frames[:, :, 2], np.maximum(frames[:, -1:, 2] - np.arange(stack)[::-1], 0))


@pytest.mark.parametrize("splits", [1, 2])
def test_recurrent_states_stay_with_their_environments(
    stage: Any, monkeypatch: pytest.MonkeyPatch, splits: int
) -> None:
    length, burn_in = 3, 2
    agent = AgentConfig(
        agent="state_checking_agent:Remembering",
        hidden=(4,),
        recurrent_units=3,
        sequence_length=length,
        sequence_stride=1,
        burn_in=burn_in,
    )
    config = replace(config_for(splits=splits), env=EnvConfig(env=Clock), agent=agent, replay=ReplayConfig(min_size=1))
    teacher = Remembering(spec_of(config), agent)
    fields = step_fields(spec_of(config), teacher.step_spec)
    window: dict[str, Any] = {"kind": "sequence", "length": length, "stride": 1, "burn_in": burn_in}
    with Replay(500, fields, **window, streams=WORKERS * ENVS, writers=WORKERS) as replay:
        system = System(stage, monkeypatch, config, agent=teacher)
        system.replay, system.weights = replay, InlineWeights()
        system.weights.publish(teacher.weights(), 1)
        system.server = system.new_server()
        system.turns(60)
        system.kill_worker(1)  # its new generation begins with zeros, as an episode does
        system.turns(60)
        acting = system.server._agent
        assert isinstance(acting, Remembering)
        assert acting.acted > 600
        assert acting.wrong == 0
        system.server.close()
        data = replay.sample(500).data
    begins = data["first"][np.arange(500), data["mask"].argmax(axis=1)]
    zero = ~(data["lstm_h"].any(axis=1) | data["lstm_c"].any(axis=1))
    np.testing.assert_array_equal(begins, zero)
    assert 0 < begins.sum() < 500


def test_a_seed_decides_everything(make_stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(config_for(), env=EnvConfig(), agent=AgentConfig(agent="dqn", hidden=(8,)))
    runs = []
    for _ in range(2):
        agent = agent_class("dqn")(spec_of(config), config.agent, "cpu", 3)
        system = System(make_stage(), monkeypatch, config, agent=agent)
        system.weights = InlineWeights()
        system.weights.publish(agent.weights(), 1)
        system.server = system.new_server()
        system.turns(30)
        runs.append(system.streams())
    assert len(runs[0]) == WORKERS * ENVS
    for one, two in zip(*runs, strict=True):
        assert len(one) == len(two) > 20
        for mine, other in zip(one, two, strict=True):
            for name in mine:
                np.testing.assert_array_equal(mine[name], other[name])


def test_what_the_server_says_of_its_batches(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    system = System(stage, monkeypatch, config_for())
    system.turns(30)
    system.server.close()
    said = stage.values("inference")
    assert said
    assert all(values["batch"] == WORKERS * ENVS for values in said)  # everybody asks before the server's turn
    assert all(values["wait_ms"] >= 0.0 for values in said)
    assert stage.run.totals["batches"] == len(system.agent.batches)


def test_a_server_with_patience_waits_for_no_certain_number(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two workers is away: the other is answered all the same, again and again."""
    system = System(stage, monkeypatch, config_for(inference_wait_ms=1.0))
    system.turns(3)
    system.server._context.patience = 0.05
    for _ in range(10):
        while system.workers[1].step():
            pass
        assert system.server.step()
        assert not system.server.step()  # nobody asks
    assert system.agent.batches[-10:] == [ENVS] * 10


@pytest.mark.parametrize(
    ("envs", "splits", "sizes"), [(8, 2, (4, 4)), (5, 2, (3, 2)), (2, 4, (1, 1)), (1, 2, (1,)), (3, 1, (3,))]
)
def test_groups_are_as_equal_as_can_be(envs: int, splits: int, sizes: tuple[int, ...]) -> None:
    assert split_sizes(envs, splits) == sizes


@pytest.mark.parametrize(
    ("cores", "changes", "sizes"),
    [
        (2, {}, (5,)),
        (3, {}, (3, 2)),
        (2, {"splits": 2}, (3, 2)),
        (8, {"splits": 1}, (5,)),
        (2, {"actor_slots": 4}, (3, 2)),  # two may come from other hosts
        (2, {"serial": True}, (3, 2)),
    ],
)
def test_workers_that_share_cores_have_one_group(
    monkeypatch: pytest.MonkeyPatch, cores: int, changes: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cores)))
    assert group_sizes(override(Config(), {"actors": 2, "envs_per_actor": 5, **changes})) == sizes


@pytest.mark.parametrize(("actors", "splits", "groups"), [(1, 0, 2), (2, 0, 1), (2, 3, 3)])
def test_slots_for_more_workers_here_leave_the_groups_alone(
    monkeypatch: pytest.MonkeyPatch, actors: int, splits: int, groups: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    config = override(Config(), {"actors": actors, "actor_slots": 4, "envs_per_actor": 6, "splits": splits})
    assert len(group_sizes(config)) == (splits or 2)  # hosts may bring the other workers
    assert len(group_sizes(with_own_groups(config, actors))) == groups
