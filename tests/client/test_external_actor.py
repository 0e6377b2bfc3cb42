"""What a client's actor records, on a link that keeps it."""

from __future__ import annotations

import gc
import os
import pickle
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from apexrl.agents.exploration import slot_epsilons
from apexrl.client.external_actor import ClientActor
from apexrl.config import ActorConfig, AgentConfig, Config, EnvConfig, ReplayConfig
from apexrl.errors import AgentError, ApexrlError, ClosedError, ConfigError, SpecError, WaitTimeout
from apexrl.roles.actor import step_fields
from apexrl.shared.weights_board import WeightsBoard
from apexrl.spec import ACTION_MASK, ActionSpec, EnvSpec, Field

SPEC = EnvSpec({"observation": Field((2,), "float32")}, ActionSpec(n=2, start=10))
CONFIG = Config(
    agent=AgentConfig(agent="counting_agent:CountingAgent"),
    actor=ActorConfig(epsilon=0.5, pull_period=1),
    env=EnvConfig(reward_clip=1.0),
)


class Record:
    name = "test"
    actor_slots = 4


class Link:
    """In the carrier's place: keeps what is written, or takes no more."""

    slot = 1
    seed = 3
    record = Record()

    def __init__(self, config: Config = CONFIG, spec: EnvSpec = SPEC, version: int = 1) -> None:
        self.config, self.spec = config, spec
        self.fields = step_fields(spec, {"q": Field((2,), "float32")})
        self.ended: str | None = None
        self.closed = 0
        self.rows: list[dict[str, Any]] = []
        self.room = 1_000_000
        self.counts = {"env_steps": 0}
        self.episodes: list[tuple[float, int]] = []
        self.priorities: Any = None
        self.replay = self.context = self
        self.weights = WeightsBoard(1024)
        if version:
            self.publish(version)

    def publish(self, version: int) -> None:
        self.weights.publish({"w": np.array([version], np.float32)}, version)

    def writer(self, streams: int, priority_fn: Any) -> Link:
        self.priorities = priority_fn
        return self

    def append(self, values: dict[str, Any], timeout: float) -> None:
        if len(self.rows) >= self.room:
            raise WaitTimeout("full")
        self.rows.append({name: value[0] for name, value in values.items()})

    def check(self, ended: bool = True) -> None:
        if ended and self.ended:
            raise ClosedError(self.ended)

    def why_silent(self) -> str:
        return "nobody listens"

    def total(self, counter: str) -> int:
        return self.counts.get(counter, 0)

    def count(self, env_steps: int) -> None:
        self.counts["env_steps"] += env_steps

    def episode(self, episode_return: float, length: int) -> None:
        self.episodes.append((episode_return, length))

    def close(self) -> None:
        self.closed += 1


def make(link: Link, timeout: float = 0.0) -> ClientActor:
    return ClientActor(link, timeout)  # type: ignore[arg-type]


def test_a_step_is_an_observation_its_action_and_its_results() -> None:
    link = Link()
    actor = make(link)
    action = actor.act(np.array([1.0, 2.0]))
    assert action == 11  # 1, counted from 10
    assert type(action) is int
    assert link.rows == []  # its results are not known
    actor.observe(0.25, False, False)
    (row,) = link.rows
    assert row["observation"].tolist() == [1.0, 2.0]
    assert (row["action"], row["reward"], row["version"]) == (1, 0.25, 1)
    assert not row["terminated"]
    assert not row["truncated"]
    assert row["q"].tolist() == [1.0, 3.0]
    assert link.counts == {"env_steps": 1}


def test_a_mask_that_leaves_no_action_is_refused_at_any_step() -> None:
    fields = {"observation/x": Field((2,), "float32"), ACTION_MASK: Field((2,), "bool")}
    actor = make(Link(spec=EnvSpec(fields, ActionSpec(n=2))))
    seen = {"x": np.zeros(2, np.float32), "action_mask": np.array([True, False])}
    nothing = {**seen, "action_mask": np.zeros(2, np.bool_)}
    actor.act(seen)
    with pytest.raises(SpecError, match="observation/action_mask masks every action: a mask must leave one"):
        actor.observe(0.0, False, True, final_observation=nothing)
    actor.observe(0.0, True, False, final_observation=nothing)  # nobody acts there
    with pytest.raises(SpecError, match="observation/action_mask masks every action: a mask must leave one"):
        actor.act(nothing)
    actor.act(seen)


def test_a_truncated_episode_ends_with_its_final_observation_and_what_the_agent_makes_of_it() -> None:
    link = Link()
    actor = make(link)
    actor.act([1.0, 0.0])
    actor.observe(1.0, False, True, [5.0, 6.0])
    step, final = link.rows
    assert step["truncated"]
    assert final["observation"].tolist() == [5.0, 6.0]
    assert final["q"].tolist() == [1.0, 11.0]  # from which what would have come is estimated
    assert (final["reward"], final["terminated"], final["truncated"]) == (0, False, False)
    assert link.counts == {"env_steps": 1}  # the final observation is no step of the environment


def test_truncation_without_a_final_observation_is_refused_and_can_be_told_again() -> None:
    link = Link()
    actor = make(link)
    actor.act([1.0, 0.0])
    with pytest.raises(SpecError, match="needs final_observation="):
        actor.observe(1.0, False, True)
    assert link.rows == []
    actor.observe(1.0, False, True, [5.0, 6.0])
    assert len(link.rows) == 2


@pytest.mark.parametrize(("final", "stands"), [(None, [1.0, 0.0]), ([5.0, 6.0], [5.0, 6.0])])
def test_after_a_termination_the_last_observation_may_stand_in(final: Any, stands: list[float]) -> None:
    link = Link()
    actor = make(link)
    actor.act([1.0, 0.0])
    actor.observe(1.0, True, False, final)
    step, last = link.rows
    assert step["terminated"]
    assert last["observation"].tolist() == stands
    assert not last["terminated"]


def test_actions_are_random_until_something_is_learned() -> None:
    link = Link(replace(CONFIG, actor=replace(CONFIG.actor, random_start=True, pull_period=1000)))
    actor = make(link)
    seen = []
    for step in range(6):
        if step == 3:
            link.publish(2)
        actor.act([1.0, 0.0])
        seen.append(actor.exploration)
        actor.observe(1.0, False, False)
    mine = slot_epsilons(1, 4, 1, 0.5)[0]
    assert seen == [np.inf] * 3 + [mine] * 3  # though the next look of a learned policy is 1000 steps away
    link.publish(3)
    actor.act([1.0, 0.0])
    assert actor.weights_version == 2


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_priorities_are_computed_only_where_draws_depend_on_them(alpha: float) -> None:
    link = Link(replace(CONFIG, replay=ReplayConfig(alpha=alpha)))
    make(link)
    assert callable(link.priorities) == (alpha > 0)


def test_a_final_observation_is_ignored_while_the_episode_goes_on() -> None:
    link = Link()
    actor = make(link)
    actor.act([1.0, 0.0])
    actor.observe(1.0, False, False, "whatever")
    assert len(link.rows) == 1


def test_rewards_are_clipped_for_the_learner_and_not_in_returns() -> None:
    link = Link()
    actor = make(link)
    for reward, ends in ((5.0, False), (-7.0, False), (0.5, True)):
        actor.act([0.0, 0.0])
        actor.observe(reward, ends, False)
    assert [float(row["reward"]) for row in link.rows] == [1.0, -1.0, 0.5, 0.0]
    assert link.episodes == [(-1.5, 3)]


def test_frames_are_stacked_within_an_episode_only() -> None:
    spec = replace(SPEC, stack=3, action=ActionSpec(n=2))
    link = Link(spec=spec)
    actor = make(link)
    for value in (1.0, 2.0):
        actor.act([value, 0.0])
        actor.observe(0.0, False, False)
    actor.act([3.0, 0.0])
    actor.observe(0.0, False, True, [4.0, 0.0])
    actor.act([9.0, 0.0])
    seen = [one["observation"][0, :, 0].tolist() for one in actor._agent.seen]  # type: ignore[attr-defined]
    assert seen == [[1, 1, 1], [1, 1, 2], [1, 2, 3], [2, 3, 4], [9, 9, 9]]
    assert all(row["observation"].shape == (2,) for row in link.rows)


def test_the_recurrent_state_is_the_agents_own_until_an_episode_begins() -> None:
    actor = make(Link())
    for steps, terminated in ((3, True), (2, False), (2, False)):
        for step in range(1, steps + 1):
            actor.act([0.0, 0.0])
            ends = step == steps
            actor.observe(0.0, ends and terminated, ends and not terminated, [0.0, 0.0])
    # a truncated episode's final observation is looked at as well
    assert actor._agent.calls == [0, 1, 2] + [0, 1, 2] * 2  # type: ignore[attr-defined]


def test_a_box_action_is_an_array_of_its_own() -> None:
    action = ActionSpec((3,), "float32", low=np.zeros(3), high=np.ones(3))
    actor = make(Link(spec=replace(SPEC, action=action)))
    chosen = actor.act([0.0, 0.0])
    assert chosen.dtype == np.float32
    assert chosen.shape == (3,)
    chosen[:] = 7
    actor.observe(0.0, False, False)
    assert actor._carrier.rows[0]["action"].tolist() == [1, 1, 1]  # type: ignore[attr-defined]


def test_several_choices_are_an_array_as_the_environment_counts_them() -> None:
    actor = make(Link(spec=replace(SPEC, action=ActionSpec((2,), nvec=(2, 3), starts=(5, -1)))))
    chosen = actor.act([0.0, 0.0])
    assert chosen.tolist() == [6, 0]
    actor.observe(0.0, False, False)
    assert actor._carrier.rows[0]["action"].tolist() == [1, 1]  # type: ignore[attr-defined]


def test_epsilon_is_the_slots_and_greedy_is_handed_on() -> None:
    config = replace(CONFIG, actor=ActorConfig(epsilon=1.0, epsilon_alpha=0.0))
    actor = make(Link(config))
    assert actor.exploration == 1.0
    assert actor.act([0.0, 0.0]) == 10
    actor.observe(0.0, False, False)
    assert actor.act([0.0, 0.0], greedy=True) == 11
    other = make(Link())
    assert other.exploration == float(slot_epsilons(1, 4, 1, 0.5, 7.0)[0])
    other.act([0.0, 0.0])
    assert other._agent.exploration == [pytest.approx(other.exploration)]  # type: ignore[attr-defined]


def test_newer_weights_are_taken_when_the_pull_period_is_over() -> None:
    link = Link(replace(CONFIG, actor=ActorConfig(pull_period=2)))
    actor = make(link)
    versions = []
    for step in range(5):
        link.publish(2 + step)
        actor.act([0.0, 0.0])
        versions.append(actor.weights_version)
        actor.observe(0.0, False, False)
    assert versions == [2, 2, 4, 4, 6]
    assert [row["version"] for row in link.rows] == versions
    assert [row["q"][0] for row in link.rows] == versions


def test_without_weights_act_waits_and_says_why() -> None:
    link = Link(version=0)
    actor = make(link)
    with pytest.raises(WaitTimeout, match="no weights came within 0 s: nobody listens"):
        actor.act([0.0, 0.0])
    link.publish(4)
    assert actor.act([0.0, 0.0]) == 11  # the call may be repeated
    actor.observe(0.0, False, False)
    assert link.rows[0]["version"] == 4


def test_weights_of_another_agent_are_an_error_in_words() -> None:
    link = Link(version=0)
    link.weights.publish({"v": np.zeros(1)}, 1)
    with pytest.raises(AgentError, match="the weights of run test do not fit agent counting_agent:CountingAgent"):
        make(link).act([0.0, 0.0])


def test_a_full_window_keeps_the_step_and_the_same_call_goes_on() -> None:
    link = Link()
    actor = make(link)
    link.room = 0
    actor.act([1.0, 0.0])
    with pytest.raises(WaitTimeout, match="no room for experience within 0 s: nobody listens"):
        actor.observe(1.0, False, True, [2.0, 0.0])
    link.room = 1
    with pytest.raises(WaitTimeout):
        actor.observe(1.0, False, True, [2.0, 0.0])
    link.room = 10
    actor.observe(1.0, False, True, [2.0, 0.0])
    assert [row["observation"][0] for row in link.rows] == [1.0, 2.0]
    assert link.counts == {"env_steps": 1}


def test_a_full_window_may_be_passed_by_the_next_act() -> None:
    link = Link()
    actor = make(link)
    link.room = 0
    actor.act([1.0, 0.0])
    with pytest.raises(WaitTimeout):
        actor.observe(1.0, False, False)
    with pytest.raises(WaitTimeout):
        actor.act([2.0, 0.0])
    link.room = 10
    actor.act([2.0, 0.0])
    actor.observe(1.0, False, False)
    assert [row["observation"][0] for row in link.rows] == [1.0, 2.0]


def test_calls_out_of_order_are_refused_and_change_nothing() -> None:
    link = Link()
    actor = make(link)
    with pytest.raises(ApexrlError, match=r"observe\(\) was called before act\(\)"):
        actor.observe(0.0, False, False)
    actor.act([1.0, 0.0])
    with pytest.raises(ApexrlError, match=r"act\(\) was called twice"):
        actor.act([2.0, 0.0])
    actor.observe(0.0, False, False)
    with pytest.raises(ApexrlError, match=r"observe\(\) was called before act\(\)"):
        actor.observe(0.0, False, False)
    assert [row["observation"][0] for row in link.rows] == [1.0]


@pytest.mark.parametrize(
    ("reward", "words"), [(np.nan, "the reward is nan"), (-np.inf, "-inf"), ("much", "not str"), (None, "not NoneType")]
)
def test_a_reward_is_a_finite_number(reward: Any, words: str) -> None:
    actor = make(Link())
    actor.act([0.0, 0.0])
    with pytest.raises(SpecError, match=words):
        actor.observe(reward, False, False)


def test_after_the_end_of_the_run_act_says_so_and_observe_lets_the_program_finish() -> None:
    link = Link()
    actor = make(link)
    actor.act([0.0, 0.0])
    assert not actor.finished
    link.ended, link.room = "run test has finished", 0
    actor.observe(0.0, True, False)
    assert actor.finished
    with pytest.raises(ClosedError, match="run test has finished"):
        actor.act([0.0, 0.0])


def test_a_second_thread_is_refused_while_a_call_is_in_progress() -> None:
    actor = make(Link())
    inside, leave = threading.Event(), threading.Event()
    choose = actor._choose

    def slow(*arguments: Any) -> Any:
        inside.set()
        leave.wait(10)
        return choose(*arguments)

    actor._choose = slow  # type: ignore[method-assign]
    other = threading.Thread(target=actor.act, args=([0.0, 0.0],))
    other.start()
    assert inside.wait(10)
    with pytest.raises(ApexrlError, match=r"observe\(\) was called while another thread uses this actor"):
        actor.observe(0.0, False, False)
    leave.set()
    other.join(10)
    actor.observe(0.0, False, False)


def test_an_agent_that_records_other_fields_than_the_learners_is_refused() -> None:
    link = Link()
    link.fields["q"] = Field((3,), "float32")
    with pytest.raises(ConfigError, match="records q differently here than on the learner's host of run test"):
        make(link)


def test_it_cannot_be_pickled() -> None:
    with pytest.raises(TypeError, match=r"cannot be pickled: call connect\(\) in the other"):
        pickle.dumps(make(Link()))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_is_told_to_connect_anew() -> None:
    actor = make(Link())
    answer, question = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            actor.act([0.0, 0.0])
            os.write(question, b"it acted")
        except ClosedError as error:
            os.write(question, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(question)
    said = os.read(answer, 1000).decode()
    os.close(answer)
    assert said == f"this actor belongs to process {os.getpid()}, of which this is a fork: call connect() here too"


def test_an_actor_that_is_forgotten_is_closed() -> None:
    link = Link()
    actor = make(link)
    actor.close()
    actor.close()
    assert link.closed == 1
    other = Link()
    actor = make(other)
    del actor
    gc.collect()
    assert other.closed == 1
    with make(Link()) as actor:
        held = actor._carrier
    assert held.closed == 1  # type: ignore[attr-defined]
