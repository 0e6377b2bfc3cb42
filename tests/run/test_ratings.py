"""Elo and the draw of opponents against numbers of the literature, and the pool's files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from apexrl.errors import SnapshotError
from apexrl.run.opponent_pool import MEMORY, Member, OpponentPool, Ratings
from apexrl.run.ratings import draw_weights, expected_score, rated


@pytest.mark.parametrize(("difference", "score"), [(0, 0.5), (100, 0.64), (200, 0.76), (400, 0.9091), (-100, 0.36)])
def test_expected_scores_are_those_of_elos_table(difference: float, score: float) -> None:
    assert expected_score(1500.0 + difference, 1500.0) == pytest.approx(score, abs=0.005)


def test_a_game_changes_ratings_as_in_the_textbook() -> None:
    # FIDE's example: 1613 with K 32 against 1609 draws: expected 0.506
    own, other = rated(1613.0, 1609.0, 0.5, 1, 32.0)
    assert own == pytest.approx(1613.0 + 32.0 * (0.5 - 0.50576), abs=1e-3)
    assert own + other == pytest.approx(1613.0 + 1609.0), "what one gains the other loses"


def test_matches_lead_to_the_rating_that_expects_their_score() -> None:
    own, other = 0.0, 0.0
    for _ in range(200):
        own, other = rated(own, other, 0.75, 20, 16.0)
    assert own - other == pytest.approx(400.0 * np.log10(3.0), abs=0.1)


def test_draw_weights_are_those_of_prioritised_fictitious_self_play() -> None:
    rates = [0.0, 0.5, 1.0]
    np.testing.assert_allclose(draw_weights(rates, "hard"), np.array([1.0, 0.25, 0.0]) / 1.25)
    np.testing.assert_allclose(draw_weights(rates, "even"), [0.0, 1.0, 0.0])
    np.testing.assert_allclose(draw_weights(rates, "uniform"), [1 / 3] * 3)
    np.testing.assert_allclose(draw_weights([1.0, 1.0], "hard"), [0.5, 0.5])


def test_a_pool_is_read_as_it_was_written(tmp_path: Path) -> None:
    pool, ratings = OpponentPool(tmp_path), Ratings(12.5, 7, 3)
    assert pool.ratings() is None
    for steps in (0, 100, 200, 300):
        member = Member(f"policy-{steps:09d}", steps, steps + 1)
        pool.add({"w": np.full(3, steps, np.float32)}, member)
        ratings.members.append(member)
    ratings.members[1].played(1.0, 10)
    pool.put_ratings(ratings)
    assert OpponentPool(tmp_path).ratings() == ratings
    assert pool.weights("policy-000000200")["w"].tolist() == [200.0] * 3
    leaves = ratings.leaving(3)
    assert leaves is ratings.members[1], "whom the newest beats most often"
    ratings.members.remove(leaves)
    pool.put_ratings(ratings)
    assert not pool.file("policy-000000100").exists()
    assert ratings.leaving(3) is None


def test_later_games_count_most() -> None:
    member = Member("policy-000000000", 0, 1)
    assert member.win_rate == 0.5
    for _ in range(50):
        member.played(0.0, 20)
    for _ in range(40):
        member.played(1.0, 20)
    assert member.games == MEMORY
    assert member.win_rate > 0.9


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": 2}', json.dumps({"format": 1, "elo": 0, "version": 1, "matches": 0, "members": [
        {"name": "../../x", "env_steps": 0, "version": 1, "elo": 0, "games": 0, "score": 0}]})],
)  # fmt: skip
def test_a_spoilt_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool" / "ratings.json").write_text(text)
    with pytest.raises(SnapshotError, match="move the folder pool away"):
        OpponentPool(tmp_path).ratings()
