"""What apexrl and RLlib are given alike by ``rllib.py``, ``rllib_apex.py``, ``learners.py``.

Both interpreters: standard library only.

| | rate | goal |
| --- | --- | --- |
| environment | CartPole-v1, 2 processes with 16 each | the same |
| network, ReLU, shared by policy and value | 512–512 | impala, appo: 64–64; dqn: 128–128 |
| unroll, steps | 32 | 16 |
| batch of an update, steps | 1024, one pass | impala: 128; appo: 256, 2 minibatches × 2 epochs; dqn: 64 |
| dqn: samples of each step | 1 | 8 |
| dqn: replay | 100,000 transitions, α 0.6, β 0.4, 3-step returns, double, dueling | the same |
| evaluation | none | greedy, 10 episodes, beside training, until their mean is 475 |

``rate-256`` is ``rate`` with the layers of RLlib's default network, 256–256.

Step sizes, coefficients and exploration are each one's own for CartPole: apexrl's preset, and RLlib's examples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from benchmarks.topologies.cases import CASES, Case

ALGORITHMS = ("impala", "appo", "dqn")
GOAL = 475.0
EPISODES = 10  # of one evaluation
CAPACITY, ALPHA, BETA, N_STEP = 100_000, 0.6, 0.4, 3
CPUS_EACH = 3  # that Ray is told each of several nodes has: none has room for all processes of either


@dataclass(frozen=True)
class Setting:
    """One algorithm in one measurement."""

    case: Case
    samples_per_step: float = 1.0  # dqn
    learning_starts: int = 1000  # environment steps, dqn


_RATE = CASES["cartpole"]
_SMALL = replace(_RATE, hidden=(64, 64), unroll=16)
RATES = {name: Setting(_RATE, learning_starts=10 * _RATE.batch_steps) for name in ALGORITHMS}
GOALS = {
    "impala": Setting(replace(_SMALL, batch_steps=128)),
    "appo": Setting(replace(_SMALL, batch_steps=256, minibatches=2, epochs=2)),
    "dqn": Setting(replace(_SMALL, hidden=(128, 128), batch_steps=64), samples_per_step=8.0),
}

_RATE_256 = CASES["cartpole-256"]
SETTINGS = {  # of every measure
    "rate": RATES,
    "rate-256": {name: replace(setting, case=_RATE_256) for name, setting in RATES.items()},
    "goal": GOALS,
}
DQN_CASES = {"rate": RATES["dqn"], "goal": GOALS["dqn"]}


def windowed(setting: Setting, warm_up: float, window: float) -> Setting:
    """With other seconds than the case's, where they are given."""
    case: Any = setting.case
    return replace(setting, case=replace(case, warm_up=warm_up or case.warm_up, window=window or case.window))
