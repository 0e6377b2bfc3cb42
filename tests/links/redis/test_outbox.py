from __future__ import annotations

import json
import math

from apexrl.links.redis import outbox as module
from apexrl.links.redis.outbox import Outbox
from apexrl.run.episode_metrics import Spread


def books_close(outbox: Outbox) -> bool:
    return outbox.said == outbox.told + outbox.dropped + outbox.waiting


def test_many_episodes_are_one_message_with_the_mean_of_all() -> None:
    outbox = Outbox()
    for number in range(5000):
        outbox.episodes([float(number), 0.0], [number, 2])
    (note,) = outbox.take()
    values = json.loads(note.data)
    assert (note.kind, note.things, values["count"]) == ("episodes", 10_000, 10_000)
    assert math.isclose(values["mean_return"], 4999 / 4)
    assert math.isclose(values["mean_length"], (4999 / 2 + 2) / 2)
    assert values["returns"][-2:] == [4999.0, 0.0]
    assert len(values["returns"]) == len(values["lengths"]) == module.EPISODES_SINGLY
    assert len(note.data) < 4096
    assert books_close(outbox)


def test_metrics_of_environments_travel_with_their_episodes() -> None:
    outbox = Outbox()
    outbox.episodes([1.0], [2], {"won": Spread(1, 1.0, 1.0, 1.0)})
    outbox.episodes([1.0], [2], {"won": Spread(1, 0.0, 0.0, 0.0)})
    (note,) = outbox.take()
    assert json.loads(note.data)["metrics"] == {"won": [2, 0.5, 0.0, 1.0]}


def test_what_was_taken_is_offered_again_until_it_is_told() -> None:
    outbox = Outbox()
    outbox.warning("a", "warning")
    outbox.warning("b", "error")
    first = outbox.take()
    outbox.warning("c", "warning")
    assert outbox.take() == first
    outbox.tell(1)
    assert (outbox.told, outbox.take()) == (1, first[1:])
    outbox.tell(1)
    assert [json.loads(note.data)["text"] for note in outbox.take()] == ["c"]
    assert books_close(outbox)


def test_the_same_warning_is_counted_and_too_many_different_ones_are_dropped_and_told_of() -> None:
    outbox = Outbox()
    for number in range(100):
        outbox.warning("the same \ud800" + "x" * 10_000, "warning")
        outbox.warning(f"number {number}", "warning")
    assert outbox.dropped == 100 - (module._MOST_WARNINGS - 1)
    told = []
    while notes := outbox.take():
        told += [(note.kind, json.loads(note.data)) for note in notes]
        outbox.tell(len(notes))
        assert books_close(outbox)
    assert told[0] == ("dropped", {"count": outbox.dropped})
    assert told[1][1]["count"] == 100
    assert len(told[1][1]["text"]) == module.MOST_TEXT
    assert outbox.said == 200 == sum(values["count"] for _, values in told)


def test_returns_that_are_no_numbers_are_dropped_and_counted() -> None:
    outbox = Outbox()
    outbox.episodes([1.0, math.nan, math.inf], [1, 2, 3])
    assert outbox.dropped == 2
    assert json.loads(outbox.take()[0].data)["returns"] == [1.0]
    assert books_close(outbox)


def test_what_is_given_up_is_counted() -> None:
    outbox = Outbox()
    outbox.episodes([1.0], [1])
    outbox.warning("a", "warning")
    outbox.take()
    outbox.warning("b", "warning")
    outbox.give_up()
    assert (outbox.said, outbox.dropped, outbox.waiting, outbox.take()[1:]) == (3, 3, 0, [])


def test_the_newest_totals_are_told_once() -> None:
    outbox = Outbox()
    assert outbox.take() == []
    outbox.totals(5, 1)
    outbox.totals(9, 2)
    (note,) = outbox.take()
    assert (note.kind, json.loads(note.data)) == ("totals", {"env_steps": 9, "episodes": 2})
    outbox.totals(12, 2)
    assert outbox.take() == [note]
    outbox.tell(1)
    assert [json.loads(note.data)["env_steps"] for note in outbox.take()] == [12]
    outbox.tell(1)
    outbox.totals(12, 2)
    assert outbox.take() == []
    assert books_close(outbox)
