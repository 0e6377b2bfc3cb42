"""The library's face: ``train``, ``resume``, ``load``, ``evaluate``."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from apexrl.config import Config, convert
from apexrl.config.placement import Listen, Placement, Ray, Redis
from apexrl.config.trust import entrusted, named
from apexrl.errors import ConfigError, FencedError
from apexrl.links.tcp.tls import ServerTls
from apexrl.run.folder import RunFolder, env_name
from apexrl.run.status import Level, Observer, RunStatus

if TYPE_CHECKING:
    from apexrl.evaluation.trained_agent import LoadedAgent
    from apexrl.launch.run_claim import Claim

Callback = Callable[[RunStatus], bool | None]
"""Called with every status, a few times a second, in the calling process; True asks the run to stop."""

EVALUATION_SEED = 1_000_000_007
"""Default seed of ``evaluate``: no run's environments use it unless asked to."""


class Run:
    """A run that has ended."""

    def __init__(self, path: Path, summary: dict[str, Any] | None = None, config: Config | None = None) -> None:
        self.path = Path(path)
        """Its folder."""
        self.config = config
        """What it was run with, if this program did so."""
        self.summary: dict[str, Any] = RunFolder.open(path).summary() if summary is None else summary
        """What ``summary.json`` holds."""

    @cached_property
    def agent(self) -> LoadedAgent:
        """The trained agent with the best weights; loaded when first asked for."""
        return load(self)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Greedy episodes that were played."""

    returns: list[float]
    """Undiscounted, unclipped return of each episode."""
    checkpoint: Path
    """The file that the weights came from."""
    films: list[Path] = dataclasses.field(default_factory=list)
    """Videos, one an episode, when they were asked for."""

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """Standard deviation over the episodes (population)."""
        return float(np.std(self.returns))


def train(
    config: Config | str = "",
    *,
    env: str | Callable[..., Any] | None = None,
    callbacks: Sequence[Callback] = (),
    show: bool = True,
    redis: str = "",
    run: str = "",
    listen: str = "",
    token: str = "",
    tls: ServerTls | None = None,
    ray: str | Ray = "",
    resume_or_start: bool = False,
    replace_run: bool = False,
    **overrides: Any,
) -> Run:
    """Train an agent and wait until it is done.

    Args:
        config: a ``Config``, or a preset's name; empty: the defaults, for which ``env`` must be given.
        env: Gymnasium id, ``module:Id-v0``, or a callable that returns an environment (keyword arguments:
            ``env_kwargs``). Worker processes must be able to import a callable: define it at the top of a module.
        callbacks: called with every ``RunStatus``; returning True stops the run.
        show: a live panel on a terminal, plain lines elsewhere; False: silent.
        redis: URL of a Redis server, through which other hosts may join with ``apexrl actor`` or ``apexrl.join``.
        run: the run's name there; empty: that of its folder.
        listen: HOST:PORT at which environment workers of other hosts may ask (topology ``seed`` or ``ga3c``),
            brought by ``apexrl envs`` or ``apexrl.join_envs``.
        token: that they must know; with ``redis`` the run's record is signed with it, for hosts that have it too.
        tls: ``apexrl.links.tcp.tls.ServerTls``, or what ``self_signed(FILE)`` of that module made: by which they know
            a run that listens.
        ray: run on a Ray cluster: ``auto``, the one that this machine belongs to; ``local``, a new one here; HOST:PORT
            of its head; or ``Ray``, which say more. With ``actors="MIN:MAX"`` it grows as the cluster has room.
        resume_or_start: the run of that ``name`` in ``out`` goes on, from its newest checkpoint and with the settings
            that it has; if it has ended, it is returned at once; if there is none, or it left no checkpoint, it begins.
            So the same call may be repeated until the run is done.
        replace_run: what the Redis server keeps of another run of that name, without a learner, is deleted.
        **overrides: any setting by its flat name, as on the command line: ``actors=4, learning_rate=3e-4``. An
            ``agent="sac"`` brings the settings that its name stands for; a ``topology="impala"`` that cannot run the
            present agent brings one that it can.

    Returns:
        The run, with its summary, its folder, and the trained agent.

    Raises:
        ConfigError: an unknown preset or setting, one that agent or topology does not read or that makes another agent
            of it, an agent that the topology cannot run, or a value out of range.
        EnvError: the environment cannot be made.
        HeldError: another process trains the run.
        WorkerError: the run failed; its folder holds what there is.
    """
    if isinstance(config, str):
        if not config and env is None:
            raise ConfigError("say what to train: a preset's name, a Config, or env=")
        from apexrl.presets import preset

        config = preset(config).config if config else Config()
    from apexrl.launch.ray.resources import in_range
    from apexrl.topologies.validation import validate

    overrides = in_range(overrides, bool(ray))
    if env is not None:
        overrides["env"] = env
    config = convert.override(_with_names(config, overrides), overrides)
    observers: list[Observer] = [Calls(callback) for callback in callbacks]
    placement = _placement(redis, run, listen, token, tls, ray, replace_run=replace_run)
    again: dict[str, Any] = {"resume_or_start": True} if resume_or_start else {}
    config = validate(config, overrides, elsewhere=bool(listen))
    return _run(config, observers=[*panels(show), *observers], placement=placement, **again)


def resume(
    path: str | Path,
    *,
    callbacks: Sequence[Callback] = (),
    show: bool = True,
    redis: str = "",
    run: str = "",
    listen: str = "",
    token: str = "",
    tls: ServerTls | None = None,
    ray: str | Ray = "",
    trust: Sequence[str] = (),
    replace_run: bool = False,
    **overrides: Any,
) -> Run:
    """Go on with a run in its own folder, from its newest checkpoint (and its replay, when that was saved).

    Args:
        path: the run folder.
        callbacks: as for ``train``.
        show: as for ``train``.
        redis: as for ``train``; actors that wait for the run go on with it.
        run: as for ``train``; empty: the name that it had.
        listen, token, tls: as for ``train``; workers that wait for the run go on with it.
        ray: as for ``train``; empty: a run that was on a Ray cluster goes on there, if that is on this machine;
            ``none``: on this machine alone.
        trust: modules of your own of which the folder may name an environment, an agent or a network.
        replace_run: as for ``train``.
        **overrides: what shall differ from its ``config.toml``, most often what ends it: ``minutes=30``.
    """
    from apexrl.launch.ray.resources import in_range
    from apexrl.topologies.validation import validate

    folder = RunFolder.open(path)
    observers: list[Observer] = [Calls(callback) for callback in callbacks]
    placement = _placement(redis, run, listen, token, tls, ray, replace_run=replace_run, resumed=folder.path)
    folder.check_links()
    config = convert.override(folder.config(), in_range(overrides, isinstance(placement, Ray)))
    config = entrusted(config, (*_given(trust), *named(overrides)), str(folder.config_path))
    config = validate(config, overrides, elsewhere=bool(listen))
    return _run(config, observers=[*panels(show), *observers], resume=folder.path, placement=placement)


def load(
    run: str | Path | Run,
    checkpoint: str = "best",
    *,
    device: str = "cpu",
    env: Callable[..., Any] | None = None,
    trust: Sequence[str] = (),
) -> LoadedAgent:
    """The trained agent of a run: ``load(path).act(observation)``.

    Args:
        run: run folder, or what ``train`` returned.
        checkpoint: ``best``, ``latest``, or a checkpoint file.
        device: ``cpu``, ``cuda`` …
        env: the environment's callable, in place of what the folder names.
        trust: modules of your own of which the folder may name an environment, an agent or a network; what this
            program has trained itself needs none.

    Raises:
        ConfigError: not a run folder, or one that names code which nobody trusts.
        SnapshotError: its weights cannot be read.
    """
    from apexrl.evaluation.trained_agent import load_agent

    return load_agent(_folder(run), checkpoint, device, env, _given(trust), _config(run, env))


def evaluate(
    run: str | Path | Run,
    episodes: int = 20,
    video: str | Path | None = None,
    *,
    seed: int = EVALUATION_SEED,
    checkpoint: str = "best",
    env: Callable[..., Any] | None = None,
    trust: Sequence[str] = (),
) -> Evaluation:
    """Play greedy episodes in fresh environments.

    Args:
        run: run folder, or what ``train`` returned.
        episodes: how many, at least 1.
        video: a folder for one film an episode (extra ``video``; the environment must render ``rgb_array``).
        seed: of the environments.
        checkpoint: ``best``, ``latest``, or a checkpoint file.
        env: the environment's callable, in place of what the folder names.
        trust: as for ``load``.
    """
    from apexrl.envs import FrameStack, make_vector
    from apexrl.evaluation.trained_agent import load_agent, trusted_config
    from apexrl.roles.evaluator import Trial

    if episodes < 1:
        raise ConfigError(f"--episodes must be at least 1, not {episodes}")
    folder = _folder(run)
    config = _config(run, env) or trusted_config(folder, _given(trust), env)
    wanted = config.env
    loaded = load_agent(folder, checkpoint, config=config)
    if video is not None:
        from apexrl.evaluation.video import filmed

        count, wanted, films = 1, *filmed(wanted, Path(video))
    else:
        count, films = min(episodes, config.evaluator.eval_envs), []
    vector = make_vector(wanted, count, seed)
    try:
        frames = FrameStack(vector.spec.stack, count, vector.spec.observation)
        trial = Trial(loaded.agent, vector, frames, episodes, seed)
        while trial.step():
            pass
    finally:
        vector.close()
    assert loaded.checkpoint is not None
    return Evaluation(trial.returns, loaded.checkpoint, films)


def run(
    config: Config,
    *,
    observers: Sequence[Observer] = (),
    resume: Path | None = None,
    on_folder: Callable[[Path], None] | None = None,
    placement: Placement | None = None,
    resume_or_start: bool = False,
) -> Run:
    """Launch a run and draw its learning curve; ``train`` and the command both come here.

    Args:
        config: everything.
        observers: who watches.
        resume: the folder of a run to go on with.
        on_folder: told the run folder's path as soon as there is one.
        placement: where other hosts may join; None: nowhere.
        resume_or_start: see ``train``.
    """
    from apexrl.launch import launch
    from apexrl.presets import check_installed
    from apexrl.topologies.validation import validate

    config = validate(config, elsewhere=isinstance(placement, Listen))
    check_installed(config)
    remember = Remember(on_folder)
    with ExitStack() as stack:
        where: dict[str, Any] = {} if placement is None else {"placement": placement}
        if resume_or_start:
            claim = stack.enter_context(closing(_claim(config, placement, observers)))
            if claim.ended:
                remember.started(config, claim.folder.path)
                _tell(observers, f"run {claim.folder.path} is done: {claim.ended}")
                return Run(claim.folder.path, None, config)
            config, where = claim.config, {**where, "claim": claim}
        try:
            summary = launch(config, observers=[remember, *observers], resume=resume, **where)
        finally:
            if remember.path is not None and not isinstance(sys.exception(), FencedError):  # then it is another's
                _try_to_draw(RunFolder(remember.path), config, observers)
    assert remember.path is not None, "launch told no observer of its folder"
    return Run(remember.path, summary, config)


def _claim(config: Config, placement: Placement | None, observers: Sequence[Observer]) -> Claim:
    """The folder of a run that goes on or begins; on a Redis server the run's name there is the folder's, too."""
    from apexrl.launch import run_claim

    name = config.name or (placement.run if isinstance(placement, Redis) else "")
    return run_claim.resume_or_start(dataclasses.replace(config, name=name), lambda text: _tell(observers, text))


def _tell(observers: Sequence[Observer], text: str) -> None:
    for observer in observers:
        observer.message(text)


_run = run  # for those who have an argument of that name


def draw_curve(folder: RunFolder, config: Config) -> bool:
    """(Re)draw ``learning_curve.png``, and ``autotune.png`` of a tuned run; False when nothing was logged yet."""
    from apexrl.report.curves import learning_curve, tuning_picture

    title = _subject(config)
    drawn = learning_curve(folder.metrics_path, folder.curve_path, title, config.stop.stop_at_return)
    tuning_picture(folder.metrics_path, folder.autotune_path, title)
    return drawn


def draw_lag(folder: RunFolder, config: Config) -> bool:
    """(Re)draw ``policy_lag.png``; False when nothing was learned yet."""
    from apexrl.report.curves import policy_lag

    known = folder.summary().get("policy_lag") or {}
    title = f"Policy lag  ·  {_subject(config)}"
    return policy_lag(folder.metrics_path, folder.lag_path, title, known, config.learner.max_policy_lag)


def _subject(config: Config) -> str:
    """What was run, in words."""
    what = config.preset or env_name(config)
    return f"{what}  ·  {config.topology} {config.agent.agent}  ·  seed {config.seed}"


def _try_to_draw(folder: RunFolder, config: Config, observers: Sequence[Observer]) -> None:
    """A picture that fails must not hide how the run ended."""
    from apexrl.launch.contained_observers import contained, tell

    for draw, path in ((draw_curve, folder.curve_path), (draw_lag, folder.lag_path)):
        try:
            draw(folder, config)
        except Exception as error:
            tell(contained(observers), f"{path} could not be drawn: {type(error).__name__}: {error}", "warning")


class Watch:
    """An observer that ignores everything; a base for those who want one thing."""

    def started(self, config: Config, folder: Path) -> None: ...

    def update(self, status: RunStatus) -> bool | None: ...

    def event(self, kind: str, values: dict[str, Any]) -> None: ...

    def message(self, text: str, level: Level = "info") -> None: ...

    def finished(self, summary: dict[str, Any]) -> None: ...


class Calls(Watch):
    """Hands every status to a callback."""

    def __init__(self, callback: Callback) -> None:
        self._callback = callback

    def update(self, status: RunStatus) -> bool | None:
        return self._callback(status)


class Remember(Watch):
    """Remembers the run folder."""

    def __init__(self, told: Callable[[Path], None] | None = None) -> None:
        self.path: Path | None = None
        self._told = told

    def started(self, config: Config, folder: Path) -> None:
        self.path = folder
        if self._told is not None:
            self._told(folder)


def _with_names(config: Config, overrides: Mapping[str, Any]) -> Config:
    """``config`` with the settings that names stand for, where ``overrides`` name another topology or agent."""
    from apexrl.presets import with_agent, with_topology

    if "agent" in overrides and not isinstance(overrides["agent"], str):
        raise ConfigError(f"agent= is a name, not {overrides['agent']!r}; your own: 'package.module:Class'")
    if "topology" in overrides:
        if not isinstance(overrides["topology"], str):
            raise ConfigError(f"topology= is a name, not {overrides['topology']!r}")
        return with_topology(config, overrides["topology"], overrides.get("agent", ""))
    return with_agent(config, overrides["agent"]) if "agent" in overrides else config


def _placement(
    redis: str,
    run: str,
    listen: str,
    token: str,
    tls: ServerTls | None,
    ray: str | Ray,
    *,
    replace_run: bool,
    resumed: Path | None = None,
) -> Placement | None:
    """Where the run lives, by the arguments of ``train`` or ``resume``.

    Args:
        resumed: folder of a run to go on with, which may name its Ray cluster.
    """
    if replace_run and not redis:
        raise ConfigError("replace_run= is of a run on a Redis server: give redis= too")
    if listen and redis:
        raise ConfigError("listen= is for environment workers, redis= for actors: give one of them")
    if listen and run:
        raise ConfigError(f"run={run!r} is a name on a Redis server, and listen= needs none: leave out run=")
    if token and not (listen or redis):
        raise ConfigError("token= is shared with other hosts: it means nothing without listen= or redis=")
    if tls and not listen:
        raise ConfigError("tls= is of a run that listens: it means nothing without listen=")
    if run and not redis:
        raise ConfigError(f"run={run!r} is a name on a Redis server: give redis= too")
    if ray and (listen or redis):
        raise ConfigError("ray= runs on a cluster, redis= and listen= over hosts: give one of them")
    if listen:
        return Listen(listen, token, tls)
    if redis:
        return Redis(redis, run, None if resumed else True, token, replace_run)
    if isinstance(ray, Ray):
        return ray
    if resumed is not None:
        from apexrl.launch.ray import resources

        return resources.resumed(resumed, ray)
    return Ray(ray) if ray else None


def panels(show: bool) -> list[Observer]:
    if not show:
        return []
    from apexrl.report.live_panel import panel

    return [panel()]


def _given(trust: Sequence[str]) -> tuple[str, ...]:
    return (trust,) if isinstance(trust, str) else tuple(trust)


def _config(run: str | Path | Run, env: Callable[..., Any] | None) -> Config | None:
    """What a run of this program was made of; None: its folder must say."""
    config = run.config if isinstance(run, Run) else None
    if config is None or env is None:
        return config
    return dataclasses.replace(config, env=dataclasses.replace(config.env, env=env))


def _folder(run: str | Path | Run) -> RunFolder:
    return RunFolder.open(run.path if isinstance(run, Run) else run)
