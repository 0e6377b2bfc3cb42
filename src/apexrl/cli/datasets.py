"""``apexrl dataset``: datasets that runs make, and what is in one."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from apexrl.cli import dataset_flags, flags
from apexrl.cli.exit_codes import OK
from apexrl.config import convert
from apexrl.errors import ConfigError

if TYPE_CHECKING:
    from apexrl.evaluation.off_policy.importance import Estimate

_PROGRESS_SECONDS = 5.0
_WORDS = ("record", "export", "show")


def dataset(words: list[str]) -> int:
    """record a run's episodes as a Minari dataset, export its replay as one, or show one"""
    if words and words[0] in ("-h", "--help"):
        print("usage: apexrl dataset {record RUN --to DIR | export RUN --to DIR | show DIR} (--help after each)")
        return OK
    if not words or words[0] not in _WORDS:
        raise ConfigError("say what to do: apexrl dataset record RUN --to DIR, export RUN --to DIR, or show DIR")
    return {"record": _record, "export": _export, "show": _show}[words[0]](words[1:])


def _record(words: list[str]) -> int:
    from apexrl.evaluation import episodes, recording
    from apexrl.evaluation.loaded_agent import load_agent, trusted_config
    from apexrl.run.folder import RunFolder

    wanted = flags.parse(dataset_flags.Record, words, "dataset record")
    folder = RunFolder.open(wanted.run)
    config = trusted_config(folder, wanted.trust, None)
    given = {"eval_actions": wanted.actions, "eval_epsilon": wanted.epsilon}
    config = convert.override(config, {name: value for name, value in given.items() if value is not None})
    episodes.check(config, wanted.episodes)
    loaded = load_agent(folder, wanted.checkpoint, config=config)
    written = recording.record(loaded, config, wanted.episodes, wanted.seed, Path(wanted.to), wanted.id)
    return _told(wanted.to, written)


def _export(words: list[str]) -> int:
    from apexrl.evaluation import recording
    from apexrl.evaluation.loaded_agent import trusted_config
    from apexrl.run.folder import RunFolder

    wanted = flags.parse(dataset_flags.ExportReplay, words, "dataset export")
    folder = RunFolder.open(wanted.run)
    if not folder.replay_path.is_file():
        raise ConfigError(
            f"{wanted.run} has no saved replay: a run writes it at its end, with --save-replay. Of any run, episodes "
            "can be recorded: apexrl dataset record"
        )
    config = trusted_config(folder, wanted.trust, None)
    return _told(wanted.to, recording.saved(folder.replay_path, config, Path(wanted.to), wanted.id))


def _show(words: list[str]) -> int:
    from apexrl.datasets.minari_files import Dataset, described

    wanted = flags.parse(dataset_flags.Show, words, "dataset show")
    found = Dataset(wanted.dataset)
    returns, lengths, ended, told = [], [], 0, 0
    for episode in found:
        returns.append(float(episode.reward.sum()))
        lengths.append(episode.steps)
        ended += bool(episode.terminated[-1])
        told += episode.log_prob is not None
    print(f"{found.metadata.get('dataset_id', '')} of {found.env or 'an environment that it does not name'}")
    print(
        f"  {found.episodes} episodes, {found.steps} steps; {ended} episodes terminated, {found.episodes - ended} cut"
    )
    print(f"  return {np.mean(returns):.4g} ± {np.std(returns):.4g} (min {min(returns):.4g}, max {max(returns):.4g})")
    print(f"  length {np.mean(lengths):.4g} (min {min(lengths)}, max {max(lengths)})")
    print(f"  {described(found.spec)}")
    print(f"  probabilities of actions: {'all' if told == found.episodes else 'none' if not told else 'some'}")
    return OK


def ope(words: list[str]) -> int:
    """estimate from a dataset what a run's agent would return"""
    import torch

    from apexrl.datasets.minari_files import Dataset
    from apexrl.evaluation.loaded_agent import load_agent, trusted_config
    from apexrl.evaluation.off_policy.estimates import FITTED, estimates
    from apexrl.evaluation.off_policy.fitted_q import Fit
    from apexrl.run.folder import RunFolder

    wanted = flags.parse(dataset_flags.Ope, words, "ope")
    folder = RunFolder.open(wanted.run)
    config = trusted_config(folder, wanted.trust, None)
    gamma = config.agent.gamma if wanted.gamma is None else wanted.gamma
    if not (0.0 <= gamma <= 1.0 and 0.0 <= wanted.epsilon <= 1.0 and wanted.updates >= 1):
        raise ConfigError(
            f"--gamma and --epsilon must be between 0 and 1 and --updates at least 1, not {gamma:g}, "
            f"{wanted.epsilon:g} and {wanted.updates}"
        )
    torch.set_num_threads(config.learner.learner_threads)  # several wait for each other: 2.4 times as long
    loaded = load_agent(folder, wanted.checkpoint, config=config)
    methods = wanted.method
    if not methods:
        weighing = not loaded.spec.action.box and all(one.log_prob is not None for one in Dataset(wanted.dataset))
        methods = (FITTED, *(("wis", "wpdis") if weighing else ()))
    fit = Fit(gamma, wanted.epsilon, wanted.updates)
    found = estimates(loaded, config, wanted.dataset, methods, fit, wanted.seed, _Progress(fit.updates))
    short = FITTED in found.estimates and fit.updates < fit.least_updates
    if wanted.json:
        effective = None if math.isnan(found.effective) else found.effective
        of_agent = {
            name: {part: None if math.isnan(number) else number for part, number in one._asdict().items()}
            for name, one in found.estimates.items()
        }
        told = {"gamma": gamma, "dataset": found.recorded._asdict(), "effective": effective}
        print(json.dumps({**told, "updates_needed": fit.least_updates if short else None, **of_agent}))
        return OK
    print(f"discounted return from the first states of {wanted.dataset}, γ {gamma:g}, with intervals of 95 %")
    print(f"  {'dataset':8} {_spelled(found.recorded)}  its own policy")
    for name, one in found.estimates.items():
        print(f"  {name:8} {_spelled(one)}")
    if short:
        print(
            f"  fqe may be too near to 0 where episodes are long: γ {gamma:g} looks {fit.horizon:.0f} steps ahead, "
            f"for which it needs --updates {fit.least_updates}"
        )
    if not math.isnan(found.effective):
        print(f"  importance weights: as much as {found.effective:.1f} equally weighted episodes say")
    return OK


class _Progress:
    """Says on stderr how far the fit of critics is, every few seconds."""

    def __init__(self, updates: int) -> None:
        self._updates, self._next = updates, time.monotonic() + _PROGRESS_SECONDS

    def __call__(self, made: int) -> None:
        if time.monotonic() >= self._next and made < self._updates:
            self._next = time.monotonic() + _PROGRESS_SECONDS
            print(f"fitted Q evaluation: {made:,} of {self._updates:,} updates", file=sys.stderr, flush=True)


def _spelled(one: Estimate) -> str:
    if math.isnan(one.value):
        return "none: the policy would have made no recorded episode"
    return f"{one.value:10.4g}  [{one.low:.4g}, {one.high:.4g}]"


def _told(to: str, written: tuple[int, int]) -> int:
    episodes, steps = written
    print(f"{to}: {episodes} episodes, {steps} steps")
    return OK
