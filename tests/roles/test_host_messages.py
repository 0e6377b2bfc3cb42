"""What a thousand hosts say becomes a few lines and one message about episodes; all of it is counted."""

from __future__ import annotations

import pytest

from apexrl.launch.recent_returns import LatestReturns
from apexrl.links.redis.members import Message
from apexrl.roles.host_messages import HostMessages


def episodes(member: str, returns: list[float], count: int | None = None, mean: float | None = None) -> Message:
    count = len(returns) if count is None else count
    mean = sum(returns) / len(returns) if mean is None else mean
    values = {"returns": returns, "lengths": [1] * len(returns), "count": count, "mean_return": mean, "mean_length": 2}
    return Message(member, "episodes", values)


def warning(member: str, text: str, count: int = 1, level: str = "warning") -> Message:
    return Message(member, "log", {"text": text, "level": level, "count": count})


def test_a_thousand_hosts_are_a_few_messages(stage) -> None:
    hosts = HostMessages(stage.context("intake"))
    said = [episodes(f"h-{n}", [float(n)] * 3) for n in range(1000)]
    said += [warning(f"h-{n}", "the disk is full", 2) for n in range(1000)]
    said += [warning("h-7", f"number {n}") for n in range(100)]
    said += [warning("h-8", "broken", level="error"), Message("h-9", "dropped", {"count": 5})]
    hosts.pass_on(said)
    (told,) = stage.values("episodes")
    assert (told["count"], told["mean_return"], told["mean_length"]) == (3000, pytest.approx(499.5), pytest.approx(2))
    assert len(told["returns"]) == len(told["lengths"]) == 1000
    logs = [values["text"] for values in stage.values("log")]
    assert logs[0] == "h-8: broken"
    assert logs[1] == "h-0, h-1, h-10 and 997 other hosts: the disk is full (2000 times)"
    assert logs[-1] == "94 other warnings of 1 hosts are left out here; see their own logs"
    assert len(logs) == 9
    assert hosts.heard + hosts.dropped == 3000 + 2000 + 100 + 1 + 5
    assert hosts.dropped == 94 + 5


def test_few_episodes_are_passed_on_as_they_are(stage) -> None:
    HostMessages(stage.context("intake")).pass_on([episodes("a", [1.0, 2.0]), episodes("b", [3.0])])
    (told,) = stage.values("episodes")
    assert (told["returns"], "count" in told) == ([1.0, 2.0, 3.0], False)


def test_metrics_of_environments_are_added_up(stage) -> None:
    said = [
        Message(name, "episodes", {**episodes(name, [1.0]).values, "metrics": told})
        for name, told in (("a", {"won": [1, 1.0, 1.0, 1.0]}), ("b", {"won": [3, 0.0, 0.0, 0.0], "odd": ["x"] * 4}))
    ]
    HostMessages(stage.context("intake")).pass_on(said)
    (told,) = stage.values("episodes")
    assert told["metrics"] == {"won": (4, 0.25, 0.0, 1.0)}


@pytest.mark.parametrize(
    "values",
    [
        {"returns": ["x"], "lengths": [1]}, {"returns": 5}, {"returns": [1.0], "lengths": []}, {"count": 0},
        {"returns": [True], "lengths": [1]}, {"returns": [1e400], "lengths": [1]}, {"mean_return": None},
        {"mean_return": float("inf")}, {"count": -1}, {"count": 2**60}, {"count": 1.5}, {"count": True},
        {"returns": [1.0, 1.0], "lengths": [1, 1]},
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_counted(stage, values) -> None:
    hosts = HostMessages(stage.context("intake"))
    good = {"returns": [1.0], "lengths": [1], "count": 1, "mean_return": 1.0, "mean_length": 1.0}
    hosts.pass_on([Message("a", "episodes", {**good, **values}), Message("a", "checkpoint", {"path": "/", "count": 1})])
    hosts.pass_on([Message("a", "log", {"text": 5, "count": 1})])
    assert stage.said == []
    assert (hosts.heard, hosts.dropped) == (0, 3)


def test_a_mean_of_many_counts_as_many() -> None:
    latest = LatestReturns()
    assert latest.hear({"returns": [1.0, 3.0]}) == 2.0
    assert latest.hear({"returns": [9.0], "count": 98, "mean_return": 10.0}) == pytest.approx((4.0 + 980.0) / 100)
    assert latest.hear({"returns": [5.0]}) == pytest.approx((3.0 + 980.0 + 5.0) / 100)
    assert latest.hear({"returns": [], "count": 1000, "mean_return": 7.0}) == 7.0
    assert latest.hear({"returns": [1.0] * 250}) == 1.0


def test_totals_of_a_host_are_kept_and_what_cannot_be_one_is_counted(stage) -> None:
    hosts = HostMessages(stage.context("intake"))
    good = {"env_steps": 7, "episodes": 2}
    bad = ({"env_steps": True}, {"env_steps": -1}, {"episodes": 2**60}, {"episodes": None}, {"env_steps": "7"})
    hosts.pass_on([Message("a", "totals", {"env_steps": 3, "episodes": 0}), Message("a", "totals", good)])
    hosts.pass_on([Message("b", "totals", {**good, **wrong}) for wrong in bad])
    assert hosts.totals == {"a": [7, 2]}
    assert hosts.dropped == len(bad)
