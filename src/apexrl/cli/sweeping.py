"""The command ``sweep``."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from apexrl.cli.exit_codes import FAILED, INTERRUPTED, OK
from apexrl.config.paths import expanded
from apexrl.errors import ConfigError

if TYPE_CHECKING:
    from apexrl.cli.sweep_flags import Sweep
    from apexrl.config import Config
    from apexrl.sweep.plan import Plan, Scale
    from apexrl.sweep.run_attempts import Start

ROOT = Path("sweeps")
"""Where studies lie that are given by a plain name."""

_WIDE = 200  # characters of a table that no terminal shows


def sweep(words: list[str]) -> int:
    """search settings that learn better, by many runs"""
    from apexrl.cli import flags, sweep_flags
    from apexrl.sweep.results import show, show_population
    from apexrl.sweep.study import Study
    from apexrl.sweep.sweeper import open_plan
    from apexrl.sweep.sweeper import sweep as carry_out

    if words[:1] == ["show"]:
        from rich.console import Console

        from apexrl.sweep.plan import Plan

        shown = flags.parse(sweep_flags.SweepShow, words[1:], "sweep show")
        folder = _existing(shown.study)
        wide = None if sys.stdout.isatty() else _WIDE
        plan, console = Plan.read(folder), Console(soft_wrap=False, highlight=False, width=wide)
        if plan.rounds:
            show_population(folder, plan, console)
        else:
            plan = _entrusted(plan, shown.trust, folder, f"apexrl sweep show {folder}", env=False)
            show(Study(folder, plan), console)
        return OK
    named = [words.pop(0)] if words and not words[0].startswith("-") else []
    wanted, rest = sweep_flags.parse_sweep(words)
    if wanted.resume and named:
        raise ConfigError(f"--resume has the study's own settings: leave out {named[0]}")
    if wanted.resume:
        folder = _existing(wanted.resume)
        plan = _resumed(wanted, folder)
    else:
        plan = _planned(wanted, named, rest)
        folder = _place(wanted.study) if wanted.study else ROOT / _default_name(plan)
    plan.check()
    open_plan(folder.resolve(), plan)
    if plan.rounds:
        return _train_population(folder, plan, wanted)
    study = Study(folder.resolve(), plan)
    print(f"apexrl sweep: {plan.trials} trials in {folder}, {len(study.trials)} begun")
    for one in plan.space:
        print(f"  {one}")
    outcome = carry_out(study, wanted.parallel, lambda text: print(text, flush=True), _start(wanted.ray))
    if outcome.interrupted:
        print(f"interrupted; to go on: apexrl sweep --resume {folder}")
        return INTERRUPTED
    print(f"apexrl sweep show {folder} shows the trials")
    if outcome.best is None:
        print("no trial came to its end")
        return FAILED
    print(folder / outcome.best.name)
    return OK


def _start(ray: str) -> Start:
    """What starts a run: a process of this machine, or a task of a Ray cluster."""
    if not ray:
        from apexrl.sweep.run_process import RunProcess

        return RunProcess
    from apexrl.sweep import ray_runs

    ray_runs.connect(ray)
    return ray_runs.RayRun


def _train_population(folder: Path, plan: Plan, wanted: Sweep) -> int:
    from apexrl.sweep.population import best_member, train_population

    print(f"apexrl sweep: a population of {plan.trials} members in {folder}, {plan.rounds} rounds")
    for one in plan.space:
        print(f"  {one}")
    start = _start(wanted.ray)
    interrupted = train_population(folder.resolve(), plan, wanted.parallel, lambda text: print(text, flush=True), start)
    if interrupted:
        print(f"interrupted; to go on: apexrl sweep --resume {folder}")
        return INTERRUPTED
    best = best_member(folder)
    print(f"apexrl sweep show {folder} shows the members")
    print("" if best is None else best)
    return OK


def _planned(wanted: Sweep, named: list[str], rest: list[str]) -> Plan:
    """The plan that the flags describe."""
    from apexrl.sweep.plan import Plan
    from apexrl.sweep.search_space import search_space

    if wanted.envs and (named or any(word.partition("=")[0] == "--env" for word in rest)):
        raise ConfigError("--envs stands in place of a preset and of --env: leave that out")
    rest = [*rest, *(word for module in wanted.trust for word in ("--trust", module))]
    pairs = [_env_and_scale(word) for word in wanted.envs]
    configs = tuple(_config(["--env", env, *rest]) for env, _ in pairs) or (_config([*named, *rest]),)
    if wanted.population:
        return _planned_population(wanted, configs[0], rest)
    return Plan(
        configs,
        search_space(configs[0], wanted.over),
        30 if wanted.trials is None else wanted.trials,
        wanted.seeds,
        wanted.objective,
        wanted.pruner,
        tuple(scale for _, scale in pairs),
    )


def _planned_population(wanted: Sweep, config: Config, rest: list[str]) -> Plan:
    """The plan of a population. A replay is saved, unless flags say otherwise: else each round would begin without."""
    from apexrl.agents import AGENTS
    from apexrl.cli.train_flags import settings_given
    from apexrl.config.convert import override
    from apexrl.sweep.plan import Plan
    from apexrl.sweep.population import SEARCHED, check_space
    from apexrl.sweep.search_space import search_space

    agent = AGENTS.get(config.agent.agent)
    if "save_replay" not in settings_given(rest) and agent is not None and agent.item != "unroll":
        config = override(config, {"save_replay": True})
    space = search_space(config, wanted.over, SEARCHED)
    check_space(space)
    return Plan((config,), space, wanted.population, objective="last", pruner="none", rounds=wanted.rounds)


def _config(words: list[str]) -> Config:
    """The configuration that words of ``apexrl train`` describe."""
    from apexrl.cli import train_flags
    from apexrl.cli.starting_point import starting_point

    config, _, _ = train_flags.parse_train(words, *starting_point(words, "sweep"), "sweep")
    return dataclasses.replace(config, name="", out="")


def _env_and_scale(word: str) -> tuple[str, Scale]:
    """``ENV=RANDOM..GOOD``; without the returns, those that are known."""
    from apexrl.sweep.plan import Scale
    from apexrl.sweep.reference_returns import RETURNS

    env, equals, text = word.partition("=")
    if not equals:
        if env not in RETURNS:
            raise ConfigError(
                f"--envs {env}: its returns are not known; give those of random and of good play, {env}=RANDOM..GOOD"
            )
        return env, Scale(*RETURNS[env])
    random, _, good = text.partition("..")
    try:
        return env, Scale(float(random), float(good))
    except ValueError:
        raise ConfigError(f"--envs {word}: {text!r} is not RANDOM..GOOD, two returns") from None


def _resumed(wanted: Sweep, folder: Path) -> Plan:
    """The plan of a study, if nothing in it names code that is not trusted."""
    from apexrl.sweep.plan import Plan

    plan = _entrusted(Plan.read(folder), wanted.trust, folder, f"apexrl sweep --resume {folder}")
    return dataclasses.replace(plan, trials=plan.trials if wanted.trials is None else wanted.trials)


def _entrusted(plan: Plan, trust: Sequence[str], folder: Path, command: str, env: bool = True) -> Plan:
    """``plan``, if it names no code that is not trusted; ``env``: also as its environment."""
    from apexrl.config.trust import entrusted

    configs = tuple(entrusted(config, trust, str(folder), env, command) for config in plan.configs)
    return dataclasses.replace(plan, configs=configs)


def _place(study: str) -> Path:
    return ROOT / study if re.fullmatch(r"[\w.-]+", study) and study not in (".", "..") else expanded(study)


def _existing(study: str) -> Path:
    given = expanded(study)
    return given if given.is_dir() else _place(study)


def _default_name(plan: Plan) -> str:
    from apexrl.sweep.plan import env_label

    return plan.configs[0].preset or env_label(plan.configs[0]).lower()
