from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from apexrl.config import EvaluatorConfig
from apexrl.errors import ConfigError
from apexrl.roles.executed_actions import ExecutedActions, changes_actions, described
from apexrl.spec import ACTION_MASK, ActionSpec, Array, EnvSpec, Field

DISCRETE = ActionSpec(n=1000)
BOX = ActionSpec((2,), "float32", low=-np.ones(2, np.float32), high=np.ones(2, np.float32))
MULTI = ActionSpec((2,), nvec=(2, 5))


def played(
    settings: EvaluatorConfig, space: ActionSpec, chosen: list[Array], resets: dict[int, bool] | None = None
) -> list[Array]:
    """What one environment executes, step by step.

    Args:
        resets: steps that are a reset, which ignores its action -> whether a game ended before it, or just a life.
    """
    resets = resets or {}
    changes = ExecutedActions(settings, EnvSpec({}, space), 1, seed=7)
    found = []
    for step, action in enumerate(chosen):
        executed = changes.of(np.array([action]), {})
        found.append(executed[0])
        changes.stepped(executed, np.array([step in resets]), [0] if resets.get(step + 1) else [])
    return found


def test_the_defaults_change_nothing() -> None:
    assert not changes_actions(EvaluatorConfig())
    assert described(EvaluatorConfig()) == "greedy"
    assert described(EvaluatorConfig(eval_actions="sampled", eval_sticky=0.25)) == "sampled, sticky 0.25"


def test_a_sticky_environment_repeats_what_it_executed_before() -> None:
    chosen = [np.int64(action) for action in range(1000)]
    executed = [int(action) for action in played(EvaluatorConfig(eval_sticky=0.25), DISCRETE, chosen)]
    repeated = [now == before for before, now in itertools.pairwise(executed)]
    assert executed[0] == 0
    assert all(again or now == step for step, (again, now) in enumerate(zip(repeated, executed[1:], strict=True), 1))
    assert 0.21 < np.mean(repeated) < 0.29
    assert any(a and b for a, b in itertools.pairwise(repeated))  # the same action three times


def test_a_new_game_repeats_nothing_of_the_old_one_but_a_lost_life_forgets_nothing() -> None:
    chosen = [np.int64(action) for action in range(400)]
    sticky = EvaluatorConfig(eval_sticky=0.9)
    game = [int(a) for a in played(sticky, DISCRETE, chosen, dict.fromkeys(range(9, 400, 10), True))]
    firsts = range(10, 400, 10)  # after the reset
    assert [game[step] for step in firsts] == list(firsts)
    life = [int(a) for a in played(sticky, DISCRETE, chosen, dict.fromkeys(range(9, 400, 10), False))]
    again = [life[step] == life[step - 2] for step in firsts]  # the action of the reset in between was ignored
    assert 0.7 < np.mean(again) < 1.0
    assert not any(life[step] == step - 1 for step in firsts)


def test_sticky_boxes_repeat_whole_actions() -> None:
    chosen = [np.array([step, -step], np.float32) for step in range(200)]
    executed = played(EvaluatorConfig(eval_sticky=0.5), BOX, chosen)
    assert all(action[0] == -action[1] for action in executed)
    assert all(action.dtype == np.float32 for action in executed)
    assert 60 < sum(int(action[0]) != step for step, action in enumerate(executed)) < 140


def test_epsilon_is_the_share_of_uniform_actions() -> None:
    settings = EvaluatorConfig(eval_epsilon=0.3)
    executed = np.array(played(settings, ActionSpec(n=4), [np.int64(2)] * 4000))
    shares = np.bincount(executed, minlength=4) / len(executed)
    assert np.allclose(shares, [0.075, 0.075, 0.775, 0.075], atol=0.02)
    several = np.array(played(settings, MULTI, [np.array([1, 4])] * 2000))
    assert {tuple(row) for row in several.tolist()} == {(a, b) for a in range(2) for b in range(5)}
    assert np.mean((several == [1, 4]).all(axis=1)) == pytest.approx(0.7 + 0.3 / 10, abs=0.03)


def test_a_game_begins_with_up_to_so_many_no_ops() -> None:
    ends = range(20, 4000, 20)
    executed = [int(a) for a in played(EvaluatorConfig(eval_noops=3), DISCRETE, [np.int64(5)] * 4000, dict.fromkeys(
        ends, True))]  # fmt: skip
    games = [executed[:20], *(executed[end + 1 : end + 20] for end in ends)]
    counts = [game.index(5) for game in games]
    assert set(counts) == {0, 1, 2, 3}
    assert all(set(game[noops:]) == {5} for game, noops in zip(games, counts, strict=True))
    lives = played(
        EvaluatorConfig(eval_noops=3), DISCRETE, [np.int64(5)] * 400, dict.fromkeys(range(20, 400, 20), False)
    )
    assert all(int(action) == 5 for action in lives[3:])


@pytest.mark.parametrize(
    ("settings", "space", "told"),
    [
        ({"eval_epsilon": 0.05}, BOX, "eval_epsilon 0.05 means nothing here: .* this environment's are a box"),
        ({"eval_noops": 30}, BOX, "eval_noops 30 means nothing here: .* this environment's actions are a box"),
        ({"eval_noops": 30}, MULTI, "this environment's actions are several choices at once"),
    ],
)
def test_settings_that_mean_nothing_for_the_actions(settings: dict[str, float], space: ActionSpec, told: str) -> None:
    with pytest.raises(ConfigError, match=re.compile(told)):
        ExecutedActions(EvaluatorConfig(**settings), EnvSpec({}, space), 1, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("stack", [1, 2])
@pytest.mark.parametrize("space", [ActionSpec(n=6), MULTI])
def test_only_possible_actions_are_executed(space: ActionSpec, stack: int) -> None:
    settings = EvaluatorConfig(eval_epsilon=0.5, eval_sticky=0.5, eval_noops=3 if space.discrete else 0)
    size, rows = sum(space.choices), 50
    changes = ExecutedActions(settings, EnvSpec({ACTION_MASK: Field((size,), "bool")}, space, stack), rows, 3)
    rng, others, starts = np.random.default_rng(0), 0, np.cumsum((0, *space.choices[:-1]))
    for _ in range(40):
        masks = rng.random((rows, stack, size)) < 0.4
        chosen = np.stack([rng.integers(n, size=rows) for n in space.choices], axis=1)
        np.put_along_axis(masks[:, -1], chosen + starts, True, axis=1)
        agents = chosen if space.nvec else chosen[:, 0]
        executed = changes.of(agents, {ACTION_MASK: masks if stack > 1 else masks[:, 0]})
        assert np.take_along_axis(masks[:, -1], executed.reshape(rows, -1) + starts, axis=1).all()
        others += int((executed != agents).sum())
        changes.stepped(executed, np.zeros(rows, np.bool_), [])
    assert others > 300
