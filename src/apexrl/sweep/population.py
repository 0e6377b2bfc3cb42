"""Population-based training: members that train at the same time, and take over from each other.

Jaderberg et al. 2017, Population Based Training of Neural Networks, arXiv 1711.09846. After every part of the budget
the worst fifth each take over the checkpoint of one of the best fifth, drawn at random: weights, optimizer,
normalisation and counters (exploit). Then their settings change a little (explore). Members wait for each other between
the parts, where the paper's do not: so what is decided stands in one file before it is done, and nothing is lost or
done twice when everything is killed.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from apexrl.config import Config
from apexrl.config.convert import flat, override
from apexrl.config.settings import as_flag
from apexrl.errors import ConfigError, HeldError, WorkerError
from apexrl.launch.interrupts import Interrupts
from apexrl.run.atomic_files import read_text, replace_text
from apexrl.run.folder import RunFolder
from apexrl.run.ownership import RunLock
from apexrl.sweep.member_copy import take_over
from apexrl.sweep.plan import Plan
from apexrl.sweep.run_attempts import RunAttempts, Start
from apexrl.sweep.run_process import RunProcess
from apexrl.sweep.search_space import Dimension
from apexrl.topologies.validation import validate

SEARCHED: Final = (
    "learning_rate",
    "gamma",
    "entropy_coefficient",
    "gae_lambda",
    "clip_ratio",
    "polyak",
    "target_period_updates",
)
"""What changes unless somebody says otherwise, as far as the agent reads it."""

FIXED: Final = frozenset(
    ("image_units", "critics", "target_critics", "quantiles", "quantile_samples", "cosines", "atoms", "recurrent_units",
     "n_step", "unroll_length", "sequence_length", "sequence_stride", "burn_in", "capacity", "actors", "envs_per_actor")
)  # fmt: skip
"""Numbers that a checkpoint or a replay is made for: they cannot change while a member trains."""

END_SECONDS: Final = 90.0
"""How long members may take for their checkpoints after Ctrl-C."""

_SHARE: Final = 0.2  # of the members that take over, and that are taken over
_FACTORS: Final = (0.8, 1.2)
_LOOK_SECONDS: Final = 0.25
_ROUND: Final = re.compile(r"round-(\d{3,6})\.json")
_MOST_BYTES: Final = 16 << 20

Number = int | float


class Member(msgspec.Struct, frozen=True):
    """One member after a round."""

    member: int
    had: dict[str, Number]
    """Its settings in the round; before the first, those that it begins with."""
    score: float | None
    """Return of its last weights on fresh seeds; None: it failed."""
    takes_over: int | None
    """The member whose state it goes on with; None: its own."""
    next: dict[str, Number]
    """Its settings in the next round."""


class Round(msgspec.Struct, frozen=True):
    """What was decided after a round."""

    number: int
    """0: before the first."""
    done: bool
    """Who takes over has done so."""
    members: list[Member]


def check_space(space: Sequence[Dimension]) -> None:
    """Refuse settings that cannot change while a member trains.

    Raises:
        ConfigError: names the setting.
    """
    for one in space:
        if one.kind == "choice" or one.setting in FIXED:
            raise ConfigError(f"--over {one.setting}: it cannot change while a member of a population trains")


def rounds_of(folder: Path) -> list[Round]:
    """What was decided after each round, oldest first.

    Raises:
        ConfigError: a file cannot be read.
    """
    found = []
    for path in sorted((folder / "rounds").glob("round-*.json")):
        if _ROUND.fullmatch(path.name):
            try:
                found.append(msgspec.json.decode(read_text(path, _MOST_BYTES), type=Round))
            except (OSError, ValueError, msgspec.MsgspecError) as error:
                raise ConfigError(f"{path} cannot be read ({error})") from error
    return found


def best_member(folder: Path) -> Path | None:
    """The run folder of the member that was best after the newest round; None: no round has ended."""
    rounds = rounds_of(folder)
    scored = [one for one in rounds[-1].members if one.score is not None] if rounds else []
    return folder / _name(max(scored, key=lambda one: _worth(one.score)).member) if scored else None


def train_population(
    folder: Path,
    plan: Plan,
    parallel: int = 1,
    tell: Callable[[str], None] = print,
    start: Start = RunProcess,
) -> bool:
    """Train a population to its end, or go on with it.

    Args:
        parallel: members that train at the same time.
        tell: of every round.

    Returns:
        Whether it was interrupted.

    Raises:
        HeldError: another process trains it.
        ConfigError: a link leads out of the folder, where something would be written.
        WorkerError: every member failed.
    """
    for name in ("claims", "rounds", "logs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        RunFolder(folder / name).check_links()
    try:
        lock = RunLock(folder / "claims")
    except HeldError as error:
        raise HeldError(f"another process trains the population in {folder}: {error}") from error
    with closing(lock), Interrupts() as interrupts:
        rounds = rounds_of(folder)
        now = rounds[-1] if rounds else _write(folder, _first(plan))
        while True:
            if not now.done:
                now = _carry_out(folder, plan, now, tell)
            if now.number >= plan.rounds:
                return False
            scores = _train(folder, plan, now, parallel, interrupts, start, tell)
            if scores is None:
                return True
            now = _write(folder, decide(plan, now, scores))
            best = max((score for score in scores if score is not None), default=None)
            if best is None:
                raise WorkerError(f"every member of the population failed: see {folder / 'logs'}")
            tell(f"round {now.number} of {plan.rounds}: best member {best:.4g}")


def decide(plan: Plan, before: Round, scores: Sequence[float | None]) -> Round:
    """Who takes over whose state after a round, and everybody's next settings.

    Args:
        before: what was decided after the round before.
        scores: of each member; None: it failed.
    """
    number = before.number + 1
    rng = np.random.default_rng([plan.configs[0].seed, number])
    order = sorted(range(len(scores)), key=lambda member: _worth(scores[member]), reverse=True)
    some = max(1, round(_SHARE * len(order)))
    best, worst = order[:some], order[-some:]
    members = []
    for one, score in zip(before.members, scores, strict=True):
        had = one.next
        source = int(rng.choice(best))
        worse = _worth(score) < _worth(scores[source])
        if number < plan.rounds and worse and (one.member in worst or score is None):
            theirs = before.members[source].next
            changed = {d.setting: perturbed(d, theirs[d.setting], rng) for d in plan.space}
            members.append(Member(one.member, had, score, source, changed))
        else:
            members.append(Member(one.member, had, score, None, had))
    return Round(number, not any(one.takes_over is not None for one in members), members)


def perturbed(dimension: Dimension, value: Number, rng: np.random.Generator) -> Number:
    """A number 20 % below or above, within its range; a whole number changes by 1 at least."""
    low, high = dimension.ends
    searched = 1.0 - value if dimension.from_one else float(value)
    factor = float(rng.choice(_FACTORS))
    moved = searched * factor
    if dimension.kind == "int" and round(moved) == searched:
        moved = searched + (1 if factor > 1 else -1)
    changed: Number = dimension.to_setting(min(max(round(moved) if dimension.kind == "int" else moved, low), high))
    return changed


def member_config(plan: Plan, folder: Path, member: int, settings: Mapping[str, Any], number: int) -> Config:
    """The run of a member in round ``number``: it ends where the round does."""
    config = override(plan.configs[0], settings)
    share = number / plan.rounds
    whole = config.stop
    stop = dataclasses.replace(
        whole,
        env_steps=round(whole.env_steps * share),
        minutes=whole.minutes * share,
        schedule_env_steps=whole.schedule_env_steps or (whole.env_steps if number < plan.rounds else 0),
    )
    seed = plan.configs[0].seed + member
    return validate(dataclasses.replace(config, stop=stop, seed=seed, name=_name(member), out=str(folder)), settings)


def _first(plan: Plan) -> Round:
    """Member 0 begins with the settings that would run without a search, the others anywhere in the ranges."""
    rng = np.random.default_rng([plan.configs[0].seed, 0])
    own = flat(plan.configs[0])
    members = []
    for member in range(plan.trials):
        drawn = {one.setting: _drawn(one, rng) for one in plan.space}
        settings = {one.setting: own[one.setting] for one in plan.space} if member == 0 else drawn
        members.append(Member(member, settings, None, None, settings))
    return Round(0, True, members)


def _drawn(dimension: Dimension, rng: np.random.Generator) -> Number:
    low, high = dimension.ends
    value = float(np.exp(rng.uniform(np.log(low), np.log(high)))) if dimension.log else float(rng.uniform(low, high))
    drawn: Number = dimension.to_setting(round(value) if dimension.kind == "int" else value)
    return drawn


def _train(
    folder: Path,
    plan: Plan,
    before: Round,
    parallel: int,
    interrupts: Interrupts,
    start: Start,
    tell: Callable[[str], None],
) -> list[float | None] | None:
    """Train every member for a round; returns their scores. None: it was interrupted."""
    number = before.number + 1
    waiting = [(one.member, one.next) for one in before.members]
    scores: dict[int, float | None] = {}
    active: dict[int, RunAttempts] = {}
    try:
        while waiting or active:
            while waiting and len(active) < parallel:
                member, settings = waiting.pop(0)
                config = member_config(plan, folder, member, settings, number)
                log_path = folder / "logs" / f"{config.name}.log"
                active[member] = RunAttempts(config, log_path, folder / "claims" / f"stop-{config.name}", start)
            for member, run in list(active.items()):
                if run.goes_on():
                    continue
                del active[member]
                if run.result == "interrupted":  # by somebody who knows of nothing but the run
                    waiting.append((member, before.members[member].next))
                    continue
                scores[member] = _measured(RunFolder(folder / _name(member))) if run.result == "ended" else None
                if run.result == "failed":
                    tell(f"member {member} failed in round {number}: {run.why}")
            interrupts.pause(_LOOK_SECONDS)
    except KeyboardInterrupt:
        tell("stopping, with a checkpoint of each run; Ctrl-C again kills them")
        for run in active.values():
            run.interrupt()
        asked, deadline = interrupts.count, time.monotonic() + END_SECONDS
        while any(run.goes_on() for run in active.values()):
            if interrupts.count > asked or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        return None
    finally:
        for run in active.values():
            if run.goes_on():
                run.kill()
    return [scores[one.member] for one in before.members]


def _measured(folder: RunFolder) -> float | None:
    summary = folder.summary()
    value = summary.get("last_weights_return")
    return None if value is None else float(value)


def _carry_out(folder: Path, plan: Plan, decided: Round, tell: Callable[[str], None]) -> Round:
    """Let those take over who shall. Nobody whose state is taken over takes over himself: it may be done again."""
    for one in decided.members:
        if one.takes_over is None:
            continue
        flags = " ".join(as_flag(name, value) for name, value in one.next.items())
        text = f"round {decided.number}: member {one.member} takes over the state of member {one.takes_over}: {flags}"
        config = member_config(plan, folder, one.member, one.next, decided.number + 1)
        source, target = (RunFolder(folder / _name(member)) for member in (one.takes_over, one.member))
        take_over(source, target, config, text)
        tell(text)
    return _write(folder, Round(decided.number, True, decided.members))


def _write(folder: Path, decided: Round) -> Round:
    path = folder / "rounds" / f"round-{decided.number:03d}.json"
    replace_text(path, msgspec.json.format(msgspec.json.encode(decided)).decode() + "\n")
    return decided


def _name(member: int) -> str:
    return f"member-{member}"


def _worth(score: float | None) -> float:
    return -np.inf if score is None else score
