"""Learners that make every update together: agents whose update is several gradient steps, or of some networks only."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from apexrl import agents
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.links.averaging.gradient_averaging import AveragingMember, GradientAveraging
from apexrl.protocols import Learned
from apexrl.roles.sync_group import SyncGroup, _flat
from apexrl.spec import ActionSpec, Array, EnvSpec, Field
from sampled_batch import Batch

T, ROWS = 4, 6
DISCRETE = EnvSpec({"observation": Field((3,), "float32")}, ActionSpec(n=2))
BOX = EnvSpec({"observation": Field((3,), "float32")}, ActionSpec((2,), "float32", low=-np.ones(2), high=np.ones(2)))


def transitions(seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    data: dict[str, Array] = {
        "observation": rng.standard_normal((ROWS, 3), np.float32),
        "next_observation": rng.standard_normal((ROWS, 3), np.float32),
        "action": rng.uniform(-1.0, 1.0, (ROWS, 2)).astype(np.float32),
        "reward": rng.standard_normal(ROWS, np.float32),
        "discount": np.full(ROWS, 0.97, np.float32),
    }
    return Batch(data, np.arange(ROWS, dtype=np.uint64), rng.random(ROWS, np.float32))


def unrolls(seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    steps = (ROWS, T)
    data: dict[str, Array] = {
        "observation": rng.standard_normal((ROWS, T + 1, 3), np.float32),
        "action": rng.integers(2, size=steps),
        "log_prob": np.full(steps, np.log(0.5), np.float32),
        "reward": rng.standard_normal(steps, np.float32),
        "discount": np.full(steps, 0.97, np.float32),
        "first": rng.random((ROWS, T + 1)) < 0.1,
        "mask": np.ones(steps, np.bool_),
    }
    return Batch(data, np.arange(ROWS, dtype=np.uint64), np.ones(ROWS, np.float32))


class Case(NamedTuple):
    spec: EnvSpec
    batch: Callable[[int], Batch]
    settings: dict[str, Any]


CASES = {
    "td3": Case(BOX, transitions, {"hidden": (8,), "critic_hidden": (), "policy_period_updates": 2, "polyak": 0.1}),
    "sac": Case(BOX, transitions, {"hidden": (8,), "critic_hidden": ()}),
    "ddpg": Case(BOX, transitions, {"hidden": (8,), "critic_hidden": (), "polyak": 0.0, "target_period_updates": 3}),
    "appo": Case(DISCRETE, unrolls, {"hidden": (8,), "epochs": 2, "minibatches": 3, "learning_rate": 0.01}),
}


def make(name: str, seed: int) -> Any:
    case = CASES[name]
    config = override(agents.with_agent(Config(), name), case.settings)
    return agents.agent_class(name)(case.spec, config.agent, "cpu", seed)


def link_for(members: int = 2, **compression: Any) -> GradientAveraging:
    return GradientAveraging(members, patience=1.0, shared=False, **compression)


def begin(agent: Any, link: GradientAveraging, index: int, version: int = 1) -> SyncGroup:
    context: Any = SimpleNamespace(index=index, patience=0.0, should_stop=lambda: False)
    return SyncGroup(context, agent, link, version, agent.updates)


def together(groups: list[SyncGroup], prepared: list[Any]) -> list[Learned]:
    """One update of all, who take turns."""
    done: dict[int, Learned] = {}
    for _ in range(100):
        for index, group in enumerate(groups):
            if index not in done and (learned := group.update(prepared[index])) is not None:
                done[index] = learned
        if len(done) == len(groups):
            return [done[index] for index in range(len(groups))]
    pytest.fail("they do not come to an end")


def state(agent: Any) -> dict[str, Array]:
    return {name: value for name, value in agent.state_dict().items() if name not in ("rng", "noise")}


def assert_same(one: Any, two: Any) -> None:
    first, second = state(one), state(two)
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


@pytest.mark.parametrize("name", CASES)
def test_all_have_the_same_state_after_every_update(name: str) -> None:
    members = [make(name, 10), make(name, 11)]
    link = link_for()
    groups = [begin(agent, link, index) for index, agent in enumerate(members)]
    before = state(members[0])
    for update in range(7):
        prepared = [agent.prepare(CASES[name].batch(2 * update + k)) for k, agent in enumerate(members)]
        learned = together(groups, prepared)
        assert_same(*members)
        if name != "appo":
            assert all(one.priorities is not None and one.priorities.shape == (ROWS,) for one in learned)
            assert not np.array_equal(learned[0].priorities, learned[1].priorities)  # each of its own batch
    assert members[0].updates == members[1].updates == 7
    assert [group.made_at for group in groups] == [7, 7]
    after = state(members[0])
    assert any(not np.array_equal(before[one], after[one]) for one in after if "target" in one) or name == "appo"


@pytest.mark.parametrize("name", ["td3", "sac", "ddpg"])
def test_equal_batches_make_what_one_learner_makes(name: str) -> None:
    """The mean of two equal gradients is that gradient; so every network moves when, and as, it would alone."""
    alone, members = make(name, 10), [make(name, 10), make(name, 10)]
    link = link_for()
    groups = [begin(agent, link, index) for index, agent in enumerate(members)]
    for update in range(6):
        batch = CASES[name].batch(update)
        alone.update(alone.prepare(batch))
        prepared = [agent.prepare(batch) for agent in members]
        together(groups, prepared)
        assert_same(*members)
    assert alone.updates == members[0].updates


def test_every_gradient_step_of_an_update_is_that_of_the_mean() -> None:
    members, twins = [make("appo", 10), make("appo", 11)], [make("appo", 10), make("appo", 11)]
    twins[1].load(twins[0].weights())  # as the second takes the first's state
    link = link_for()
    groups = [begin(agent, link, index) for index, agent in enumerate(members)]
    batches = [unrolls(0), unrolls(1)]
    together(groups, [agent.prepare(batch) for agent, batch in zip(members, batches, strict=True)])

    steps = [agent.steps(agent.prepare(batch)) for agent, batch in zip(twins, batches, strict=True)]
    offered, count = [next(one) for one in steps], 0
    while offered:
        (group,) = offered[0].groups
        mean = {group: (offered[0].groups[group] + offered[1].groups[group]) / 2}
        count, offered = count + 1, [one for step in steps if (one := sent(step, mean)) is not None]
    assert count == 2 * 3
    assert_same(members[0], twins[0])
    assert_same(members[1], twins[1])


def sent(steps: Any, groups: Any) -> Any:
    try:
        return steps.send({name: gradient.clone() for name, gradient in groups.items()})
    except StopIteration:
        return None


def test_one_agent_alone_makes_the_same_steps_of_an_update_or_together_with_none_but_itself() -> None:
    one, two = make("appo", 10), make("appo", 10)
    group = begin(two, link_for(members=1), 0)
    for update in range(3):
        one.update(one.prepare(unrolls(update)))
        together([group], [two.prepare(unrolls(update))])
    assert_same(one, two)


@pytest.mark.parametrize("first", [True, False])
def test_an_update_of_several_steps_is_made_once_more_when_somebody_dies_amid_it(first: bool) -> None:
    """The gradient steps that were made before stay: all have the survivor's state."""
    members = [make("appo", 10), make("appo", 11)]
    link = link_for()
    groups = [begin(agent, link, index) for index, agent in enumerate(members)]
    together(groups, [agent.prepare(unrolls(k)) for k, agent in enumerate(members)])
    prepared = [agent.prepare(unrolls(2 + k)) for k, agent in enumerate(members)]
    for _ in range(3):
        assert [group.update(batch) for group, batch in zip(groups, prepared, strict=True)] == [None, None]
    dead = 0 if first else 1
    made = float(members[1 - dead]._network.optimizer.steps)
    assert 6 < made < 12
    members[dead] = make("appo", 12)
    groups[dead] = begin(members[dead], link, dead, version=2)
    prepared[dead] = members[dead].prepare(unrolls(4))
    together(groups, prepared)
    assert_same(*members)
    assert float(members[0]._network.optimizer.steps) == made + 6
    assert members[0].updates == members[1].updates == 2


class Elsewhere:
    """A vector on some device: nothing but ``cpu`` brings it here."""

    def __init__(self, values: list[float]) -> None:
        self._values = values

    def detach(self) -> Elsewhere:
        return self

    def reshape(self, *_: int) -> Elsewhere:
        return self

    def cpu(self) -> torch.Tensor:
        return torch.tensor(self._values)


def test_vectors_of_several_devices_meet_on_the_host() -> None:
    """An optimizer may count its steps on the CPU while all else is on a GPU."""
    vectors: Any = [Elsewhere([1.0, 2.0]), torch.tensor([3.0])]
    assert _flat(vectors).tolist() == [1.0, 2.0, 3.0]


def test_who_begins_anew_learns_how_many_updates_there_were() -> None:
    """TD3 moves its policy every second update, DDPG here copies its targets every third: all at the same."""
    members = [make("td3", 10), make("td3", 11)]
    link = link_for()
    groups = [begin(agent, link, index) for index, agent in enumerate(members)]

    def update(number: int) -> None:
        together(groups, [agent.prepare(transitions(2 * number + k)) for k, agent in enumerate(members)])

    for number in range(3):
        update(number)
    members[1] = make("td3", 12)
    groups[1] = begin(members[1], link, 1)
    for number in range(3, 6):
        update(number)
        assert members[1].updates == members[0].updates == number + 1
        assert_same(*members)


@pytest.mark.parametrize("transport", ["sockets", "gloo"])
@pytest.mark.parametrize("name", ["td3", "appo"])
def test_who_has_no_batch_follows_the_others_and_takes_part_again_when_it_has_one(
    name: str, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apexrl.roles.sync_group._ABSTAIN_SECONDS", (0.0, 0.0))
    members = [make(name, 10), make(name, 11)]
    link = GradientAveraging(2, patience=20.0, transport=transport)
    contexts: list[Any] = [SimpleNamespace(index=k, patience=0.1, should_stop=lambda: False) for k in range(2)]
    groups = [SyncGroup(context, agent, link, 1) for context, agent in zip(contexts, members, strict=True)]

    def learn() -> None:
        for update in range(9):
            batch = members[0].prepare(CASES[name].batch(update))
            while groups[0].update(batch) is None:
                pass

    other = threading.Thread(target=learn)
    other.start()
    followed = made = 0
    while followed + made < 9:
        if followed >= 3 and made < 3:
            made += groups[1].update(members[1].prepare(CASES[name].batch(100 + made))) is not None
        else:
            followed += groups[1].abstain()
    other.join()
    assert (followed, made) == (6, 3)
    assert members[0].updates == members[1].updates == 9
    assert_same(*members)
    assert [group.version for group in groups] == [10, 10]
    for group in groups:
        group.close()


def test_nobody_has_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apexrl.roles.sync_group._ABSTAIN_SECONDS", (0.0, 0.0))
    agent = make("td3", 10)
    before = state(agent)
    context: Any = SimpleNamespace(index=0, patience=0.1, should_stop=lambda: False)
    group = SyncGroup(context, agent, GradientAveraging(1, patience=20.0), 1)
    while not group._member.joined:
        assert not group.abstain()
    assert not group.abstain()
    for name, value in state(agent).items():
        np.testing.assert_array_equal(value, before[name])
    assert (agent.updates, group.version) == (0, 1)
    group.close()


def test_who_have_no_batch_send_each_other_nothing_but_see_who_leaves_and_who_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("apexrl.roles.sync_group._ABSTAIN_SECONDS", (0.0, 0.0))
    link = GradientAveraging(2, patience=20.0)
    contexts: list[Any] = [SimpleNamespace(index=k, patience=0.1, should_stop=lambda: False) for k in range(2)]
    first, second, successor = (SyncGroup(contexts[k > 0], make("td3", k), link, 1) for k in range(3))

    def meet(one: SyncGroup, other: SyncGroup) -> None:
        def abstain() -> None:
            while not other._member.joined:
                assert not other.abstain()

        thread = threading.Thread(target=abstain)
        thread.start()
        while thread.is_alive() or not one._member.joined:
            assert not one.abstain()
        thread.join()

    meet(first, second)
    for _ in range(3):  # in one thread, which would wait for itself
        assert not first.abstain()
        assert not second.abstain()
    assert first.joined
    assert second.joined
    second.close()
    assert not first.abstain()
    assert not first.joined
    meet(first, successor)
    assert first._member.size == successor._member.size == 2
    for group in (first, successor):
        group.close()


class Several:
    """Learners in threads, each with a link to the others as processes have it."""

    def __init__(self, name: str, **options: Any) -> None:
        link = GradientAveraging(2, patience=20.0, **options)
        self.agents = [make(name, 10), make(name, 11)]
        self.metrics: dict[str, float] = {}
        contexts: list[Any] = [SimpleNamespace(index=k, patience=0.1, should_stop=lambda: False) for k in range(2)]
        self.groups = [SyncGroup(one, agent, link, 1) for one, agent in zip(contexts, self.agents, strict=True)]

    def learn(self, name: str, updates: int) -> None:
        def learn(place: int) -> None:
            for update in range(updates):
                batch = self.agents[place].prepare(CASES[name].batch(2 * update + place))
                while (learned := self.groups[place].update(batch)) is None:
                    pass
                self.metrics |= learned.metrics

        other = threading.Thread(target=learn, args=(1,))
        other.start()
        learn(0)
        other.join()
        for group in self.groups:
            group.close()


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every network is large enough that its gradient is sent while it is computed; from which values on."""
    sent: list[int] = []
    send = AveragingMember.send

    def noted(self: AveragingMember, vector: torch.Tensor, start: int) -> None:
        sent.append(start)
        send(self, vector, start)

    monkeypatch.setattr("apexrl.links.averaging.sum_plans.CHUNK_FLOATS", 16)
    monkeypatch.setattr(AveragingMember, "send", noted)
    return sent


@pytest.mark.parametrize("transport", ["sockets", "gloo"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_that_are_sent_while_they_are_computed_make_the_same_updates(
    name: str, transport: str, early: list[int]
) -> None:
    in_turns = [make(name, 10), make(name, 11)]
    link = link_for()
    groups = [begin(agent, link, index) for index, agent in enumerate(in_turns)]
    for update in range(4):
        batches = [CASES[name].batch(2 * update + place) for place in range(2)]
        together(groups, [agent.prepare(batch) for agent, batch in zip(in_turns, batches, strict=True)])
    assert not early
    several = Several(name, transport=transport)
    several.learn(name, 4)
    assert len(set(early)) > 1
    assert_same(*several.agents)
    assert_same(several.agents[0], in_turns[0])


def test_a_gradient_that_is_changed_after_it_was_sent_is_summed_once_more(
    early: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent may do to its gradient what it likes; of all it is then sent at the end."""
    several = Several("appo")
    doubled = several.agents[0]._network.clip

    def doubling(*args: Any) -> float:
        several.agents[0]._network.gradient.mul_(2.0)
        return float(doubled(*args))

    monkeypatch.setattr(several.agents[0]._network, "clip", doubling)
    in_turns = [make("appo", 10), make("appo", 11)]
    link = link_for()
    groups = [begin(agent, link, index) for index, agent in enumerate(in_turns)]
    twin = in_turns[0]._network
    clip = twin.clip
    monkeypatch.setattr(twin, "clip", lambda *args: (twin.gradient.mul_(2.0), clip(*args))[1])
    together(groups, [agent.prepare(unrolls(place)) for place, agent in enumerate(in_turns)])
    several.learn("appo", 1)
    assert early
    assert_same(*several.agents)
    assert_same(several.agents[0], in_turns[0])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("compression", [{"compression": "bf16"}, {"compression": "top-k", "share": 0.1}])
def test_compressed_gradients_make_the_same_updates_between_processes_and_in_turns(
    name: str, compression: dict[str, Any], early: list[int]
) -> None:
    in_turns, exact = [make(name, 10), make(name, 11)], [make(name, 10), make(name, 11)]
    for agents_, link in ((in_turns, link_for(**compression)), (exact, link_for())):
        groups = [begin(agent, link, index) for index, agent in enumerate(agents_)]
        for update in range(4):
            batches = [CASES[name].batch(2 * update + place) for place in range(2)]
            together(groups, [agent.prepare(batch) for agent, batch in zip(agents_, batches, strict=True)])
    several = Several(name, **compression)
    several.learn(name, 4)
    assert_same(*several.agents)
    assert_same(several.agents[0], in_turns[0])
    assert any(not np.array_equal(one, state(exact[0])[key]) for key, one in state(in_turns[0]).items())
    least, most = (0.0, 2**-8) if compression["compression"] == "bf16" else (0.01, 1.0)
    assert least < several.metrics["compression_error"] < most
    assert bool(early) == (compression["compression"] == "bf16")  # the greatest are known at the end alone
