"""Episodes that end in another way than the environment means."""

from __future__ import annotations

from itertools import chain

from apexrl.config.settings import as_flag
from apexrl.report.diagnosis.finding import Cause, Evidence
from apexrl.report.diagnosis.recorded_run import METRICS, RunRecord
from apexrl.report.number_format import count, number

LONG = 50  # steps of episodes that hardly are all meant to last equally long
MANY_STEPS = 10_000
ENOUGH_EPISODES = 10
ENOUGH_UPDATES = 200


def ends_at_once(record: RunRecord) -> Cause | None:
    """Every episode ends after one step or two, and little is learned. Some environments have a single step."""
    lengths = _lengths(record)
    if not lengths or max(lengths) > 2 or record.risen > 0.3:
        return None
    return Cause(
        "ends_at_once",
        "Every episode ends at once",
        0.8,
        (Evidence(f"no episode of an evaluation lasts more than {max(lengths)} steps", METRICS),),
        "return terminated=True from env.step() only where an episode is over",
    )


def ends_never(record: RunRecord) -> Cause | None:
    """No episode terminates, and nothing that the agent does changes the return; or no episode ends at all."""
    limit = "return terminated=True from env.step() where an episode is over"
    if not record.evaluations and not record.last("episodes") and record.env_steps >= MANY_STEPS:
        seen = Evidence(f"0 episodes in {count(record.env_steps)} environment steps", METRICS)
        return Cause("ends_never", "No episode ends", 0.8, (seen,), f"{as_flag('max_episode_steps', 1000)}; {limit}")
    ends = [one.terminated for one in record.evaluations if one.terminated is not None]
    if not ends or max(ends) > 0.0 or not record.returns_alike:
        return None
    return Cause(
        "ends_never",
        "No episode terminates, so all are alike",
        0.8,
        (
            Evidence("0% of the evaluations' episodes were terminated", METRICS),
            Evidence(f"all returns are {number(record.evaluations[0].mean)}", METRICS),
        ),
        limit,
    )


def limit_as_end(record: RunRecord) -> Cause | None:
    """Episodes end as terminated at a step that looks like a time limit: what would follow is learned to be worth 0."""
    lengths, later = _lengths(record), list(chain.from_iterable(one.lengths for one in record.later))
    if len(later) < ENOUGH_EPISODES or any((one.terminated or 0.0) < 1.0 for one in record.later):
        return None
    longest = max(lengths)
    share = later.count(longest) / len(later)
    if share < 0.8 or longest <= 2:
        return None
    if len(set(lengths)) == 1:  # a game of so many rounds, perhaps
        confidence = 0.35 if longest >= LONG and longest % LONG == 0 else 0.0
    else:
        confidence = 0.5 + 0.3 * share
    if not confidence:
        return None
    return Cause(
        "limit_as_end",
        "A time limit is reported as the end of the task",
        confidence / (1.0 - 0.4 * record.learned),  # episodes that last up to the limit do not speak against it
        (Evidence(f"{share:.0%} of the episodes end as terminated after exactly {longest} steps", METRICS),),
        f"return truncated=True at the limit, or no end, and {as_flag('max_episode_steps', longest)}",
    )


def returns_alike(record: RunRecord) -> Cause | None:
    """No episode differs from any other: there is nothing to learn from."""
    if not record.returns_alike or record.updates < ENOUGH_UPDATES:
        return None
    size = record.metric("reward_size")
    more = f": {as_flag('epsilon', 1.0)}" if record.reads("epsilon") and record.discrete else ""
    return Cause(
        "returns_alike",
        "No reward was ever seen" if size == 0.0 else "Every episode had the same return",
        0.5,
        (Evidence(f"all returns of all evaluations are {number(record.evaluations[0].mean)}", METRICS),),
        "reward steps on the way to the goal, or explore more" + more,
    )


def _lengths(record: RunRecord) -> list[int]:
    return list(chain.from_iterable(one.lengths for one in record.evaluations))
