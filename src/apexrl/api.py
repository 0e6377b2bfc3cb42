"""The public functions of the library: ``train``, ``resume``, ``load``, ``evaluate``."""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from apexrl.config import Config, convert
from apexrl.config.named_env import named_env
from apexrl.config.paths import expanded, from_here, start_folder
from apexrl.config.placement import Listen, Placement, Ray
from apexrl.config.trust import entrusted, named
from apexrl.errors import ConfigError, EnvError
from apexrl.launch.placement_arguments import chosen_placement
from apexrl.links.tcp.tls import ServerTls
from apexrl.report.run_observers import copies, drawn, panels
from apexrl.run.callback_observer import callback_observers
from apexrl.run.callbacks import Callback, StatusFunction
from apexrl.run.folder import RunFolder
from apexrl.run.observers import FolderObserver
from apexrl.run.status import Observer

if TYPE_CHECKING:
    from apexrl.evaluation.episodes import Evaluation
    from apexrl.evaluation.loaded_agent import LoadedAgent

EVALUATION_SEED = 1_000_000_007
"""Default seed of ``evaluate``; no run uses it unless told to."""


class Run:
    """A run that has ended."""

    def __init__(self, path: Path, summary: dict[str, Any] | None = None, config: Config | None = None) -> None:
        self.path = Path(path)
        """Its folder."""
        self.config = config
        """Its configuration, when this program ran it."""
        self.summary: dict[str, Any] = RunFolder.open(path).summary() if summary is None else summary
        """The contents of ``summary.json``."""

    @cached_property
    def agent(self) -> LoadedAgent:
        """The trained agent with the best weights; loaded when first asked for."""
        return load(self)

    @property
    def best_weights_return(self) -> float | None:
        """Mean return of the best weights on fresh seeds at the end; None: they were not measured."""
        return self.summary.get("final_eval_return")

    @property
    def last_weights_return(self) -> float | None:
        """Mean return of the last weights on the same seeds; None: they were not measured."""
        return self.summary.get("last_weights_return")

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"


@start_folder()
def train(
    config: Config | str = "",
    *,
    env: str | Callable[..., Any] | None = None,
    callbacks: Callback | StatusFunction | Sequence[Callback | StatusFunction] = (),
    show: bool = True,
    redis: str = "",
    run: str = "",
    listen: str = "",
    token: str = "",
    tls: ServerTls | None = None,
    advertise: str = "",
    ray: str | Ray = "",
    resume_or_start: bool = False,
    replace_run: bool = False,
    checkpoint_url: str = "",
    **overrides: Any,
) -> Run:
    """Train an agent and wait until it is done.

    In the main thread, Ctrl-C and SIGTERM end the run cleanly, and the call returns, so a script goes on; the
    run's ``summary["stopped_by"]`` is then ``interrupted``. In another thread they are the program's: they
    end it and with it the run, without a last checkpoint. A callback ends it cleanly.

    Args:
        config: a ``Config``, or a preset's name; empty: agent, topology and settings that suit ``env``, which must be
            given (``agent="auto"``); ``recipe="paper"`` has the numbers of the agent's paper.
        env: Gymnasium id, ``module:Id-v0``, or a callable that returns an environment (keyword arguments:
            ``env_kwargs``), also as ``module:name``. Worker processes must be able to import a callable: define it at
            the top of a module.
        callbacks: an object of a subclass of ``Callback``, or a function that is called with every ``RunStatus``; or a
            list of these. They are called in this process and thread; one that answers True or a reason stops the run.
        show: print a live panel on a terminal, plain lines elsewhere; False: print nothing.
        redis: URL of a Redis server, through which other hosts join with ``apexrl actor`` or ``apexrl.join``.
        run: the run's name on that server (default: the name of its folder).
        listen: HOST:PORT at which the run accepts workers of other hosts (topology ``seed``, ``ga3c``, or ``a3c`` with
            ``hogwild=False``), started there by ``apexrl envs`` or ``apexrl.join_envs``.
        token: shared secret of those hosts; with ``redis`` it signs the run's record.
        tls: the server certificate for ``listen``: ``apexrl.links.tcp.tls.ServerTls``, or the result of
            ``self_signed(FILE)`` of that module.
        advertise: HOST:PORT of the run for other hosts, with ``redis``, if ``listen`` means another one inside a
            container or behind NAT. Without both, hosts find the address in the run's record.
        ray: run on a Ray cluster: ``auto`` is the one of this machine, ``local`` starts a new one, HOST:PORT is a head
            node; or a ``Ray`` with more options. With ``actors="MIN:MAX"`` the run grows as the cluster has room.
        resume_or_start: resume the run ``name`` in ``out`` from its newest checkpoint, with its own settings. A run
            that has ended is returned at once; one without a checkpoint is started. Repeat the same call until the run
            is done.
        replace_run: delete what the Redis server keeps of another run of that name that has no learner.
        checkpoint_url: copy each checkpoint to ``URL/NAME`` in an object store, as fsspec names it (``s3://BUCKET/PREFIX``;
            extra ``object-store``). With ``resume_or_start`` a copy that is newer than the folder is restored.
        **overrides: any setting by its flat name, as on the command line: ``actors=4, learning_rate=3e-4``.
            ``agent="sac"`` applies the settings of that agent; ``topology="impala"`` switches to an agent that the
            topology can run.

    Returns:
        The run, with its summary, its folder, and the trained agent.

    Raises:
        ConfigError: an unknown preset or setting, a setting that the agent or topology does not read or that belongs to
            another agent, an agent that the topology cannot run, or a value out of range.
        EnvError: the environment cannot be made.
        HeldError: another process trains the run.
        WorkerError: the run failed; its folder holds logs and checkpoints.
        CallbackError: a callback raised an error; the run was stopped after a checkpoint.
    """
    if config == "" and env is None:
        raise ConfigError("say what to train: a preset's name, a Config, or env=")
    from apexrl.launch.ray.resources import in_range
    from apexrl.presets.start_arguments import start_of
    from apexrl.topologies.validation import validate

    overrides = in_range(overrides, bool(ray))
    if env is not None:
        overrides["env"] = named_env(env) if isinstance(env, str) else env
    log_format = overrides.get("log_format", config.log_format if isinstance(config, Config) else "text")
    observers: list[Observer] = [*panels(show, log_format), *callback_observers(callbacks)]
    placed = [name for name, value in (("redis", redis), ("listen", listen), ("ray", ray)) if value]
    config = start_of(config, overrides, placed, partial(_tell, observers))
    overrides.pop("agent", None)  # it has that, or what was chosen for "auto"
    config = convert.override(config, overrides)
    placement = chosen_placement(redis, run, listen, token, tls, ray, advertise=advertise, replace_run=replace_run)
    config = validate(config, overrides, elsewhere=bool(listen))
    where: dict[str, Any] = {"placement": placement, "checkpoint_url": checkpoint_url}
    return _run(config, observers=observers, resume_or_start=resume_or_start, **where)


@start_folder()
def resume(
    path: str | Path,
    *,
    callbacks: Callback | StatusFunction | Sequence[Callback | StatusFunction] = (),
    show: bool = True,
    redis: str = "",
    run: str = "",
    listen: str = "",
    token: str = "",
    tls: ServerTls | None = None,
    advertise: str = "",
    ray: str | Ray = "",
    trust: Sequence[str] = (),
    replace_run: bool = False,
    checkpoint_url: str = "",
    out: str = "runs",
    **overrides: Any,
) -> Run:
    """Resume a run in its own folder, from its newest checkpoint (and its replay, when it was saved).

    Args:
        path: the run folder; or the URL of its copies in an object store (``checkpoint_url`` and the run's name), which
            are brought to a folder of that name below ``out``, and are continued.
        callbacks, show, replace_run, checkpoint_url: as for ``train``.
        redis, listen, token, tls, advertise: as for ``train``; hosts that wait for the run join it again.
        run: as for ``train`` (default: the previous name).
        ray: as for ``train`` (default: the previous cluster, when it is on this machine); ``none``: without Ray.
        trust: your own modules from which the folder may name an environment, an agent or a network.
        out: folder for run folders, where ``path`` is a URL.
        **overrides: settings that replace those of its ``config.toml``, such as ``minutes=30``.
    """
    from apexrl.launch.ray.resources import in_range
    from apexrl.topologies.validation import validate

    if overrides.get("initial_weights"):
        raise ConfigError("initial_weights= is for a new run: train(…, initial_weights=…). A resumed one has its own")
    path, checkpoint_url = restored(path, out, checkpoint_url)
    folder = RunFolder.open(path)
    placement = chosen_placement(
        redis, run, listen, token, tls, ray, advertise=advertise, replace_run=replace_run, resumed=folder.path
    )
    folder.check_links()
    config = convert.override(folder.config(), in_range(overrides, isinstance(placement, Ray)))
    config = entrusted(config, (*_given(trust), *named(overrides)), str(folder.config_path))
    config = validate(config, overrides, elsewhere=bool(listen))
    observers = [*panels(show, config.log_format), *callback_observers(callbacks)]
    return _run(config, observers=observers, resume=folder.path, placement=placement, checkpoint_url=checkpoint_url)


def restored(path: str | Path, out: str, checkpoint_url: str) -> tuple[Path, str]:
    """The run folder that ``path`` means, brought from an object store if it is a URL, and where its copies go."""
    if "://" not in str(path):
        return Path(path), checkpoint_url
    from apexrl.launch.checkpoint_copies import restore_run

    folder = restore_run(str(path), out)
    return folder, checkpoint_url or str(path).rstrip("/").rpartition("/")[0]


def load(
    run: str | Path | Run,
    checkpoint: str = "best",
    *,
    device: str = "cpu",
    env: Callable[..., Any] | None = None,
    trust: Sequence[str] = (),
) -> LoadedAgent:
    """Load the trained agent of a run: ``load(path).act(observation)``.

    Args:
        run: run folder, the result of ``train``, or a published agent: ``hf:USER/NAME`` (extra ``hub``).
        checkpoint: ``best``, ``latest``, or a checkpoint file.
        device: ``cpu``, ``cuda`` …
        env: makes the environment, in place of the one that the folder names.
        trust: your own modules from which the folder may name an environment, an agent or a network. A run that this
            program trained needs none.

    Raises:
        ConfigError: not a run folder, or it names code of a module that is not trusted.
        SnapshotError: its weights cannot be read.
    """
    from apexrl.evaluation.loaded_agent import load_agent

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
    actions: Literal["greedy", "sampled"] | None = None,
    epsilon: float | None = None,
    sticky: float | None = None,
    noops: int | None = None,
) -> Evaluation:
    """Play episodes in fresh environments, as the run's own evaluations did unless arguments say otherwise.

    Args:
        run: run folder, or the result of ``train``.
        episodes: number of episodes, at least 1.
        video: folder for one video per episode (extra ``video``; the environment must render ``rgb_array``).
        checkpoint, env, trust: as for ``load``.
        seed: of the environments.
        actions: ``greedy``: the best action, or the policy's mode; ``sampled``: drawn from the policy.
        epsilon: probability that an action is uniformly random instead.
        sticky: probability that an environment repeats its previous action.
        noops: most no-ops (action 0) at the start of an episode.

    Raises:
        ConfigError: a value is out of range, or means nothing to the agent or for the environment's actions.
    """
    from apexrl.evaluation import episodes as playing
    from apexrl.evaluation.loaded_agent import load_agent, trusted_config

    folder = _folder(run)
    config = _config(run, env) or trusted_config(folder, _given(trust), env)
    given = {"eval_actions": actions, "eval_epsilon": epsilon, "eval_sticky": sticky, "eval_noops": noops}
    config = convert.override(config, {name: value for name, value in given.items() if value is not None})
    playing.check(config, episodes)
    return playing.play(load_agent(folder, checkpoint, config=config), config, episodes, seed, video)


def publish(
    run: str | Path | Run,
    to: str | Path,
    *,
    licence: str,
    video: bool = True,
    private: bool = False,
    trust: Sequence[str] = (),
) -> str:
    """Publish a run's best weights, with its settings, its scores, a film and a card, in a folder or on the hub.

    Args:
        run: run folder, or the result of ``train``.
        to: a new folder, or ``hf:USER/NAME`` (extra ``hub``).
        licence: of the weights, by its name on the hub: ``apache-2.0``, ``mit``, ``cc-by-4.0`` …
        video: film an episode, if the environment renders and the extra ``video`` is installed.
        private: a new repository is private.
        trust: as for ``load``.

    Returns:
        The folder, or the repository's URL.

    Raises:
        ConfigError: the run has no final evaluation, or ``to`` is not empty.
        LinkError: the hub cannot be reached, or refuses.
    """
    from apexrl.evaluation import model_card, published
    from apexrl.report.mean_lines import mean_interval

    folder, summary = _folder(run), _folder(run).summary()
    returns = published.final_returns(folder)
    if not licence.strip() or not licence.isprintable():
        raise ConfigError("say under which licence others may use the weights: licence='apache-2.0' (--licence)")
    if on_hub := str(to).startswith(published.HUB):
        published.repository(str(to))
    with tempfile.TemporaryDirectory() as room:
        made = Path(room) / "agent"
        published.gather(folder, made, summary)
        film = ""
        if video:
            try:
                filmed = evaluate(run, 1, made / published.FILMS, trust=trust)
                film = filmed.films[0].relative_to(made).as_posix()
            except EnvError as error:
                print(f"apexrl: there is no video: {error}", file=sys.stderr)
        text = model_card.model_card(
            folder.config(), summary, returns, mean_interval(returns), str(to), licence.strip(), film
        )
        (made / published.CARD).write_text(text, encoding="utf-8")
        if on_hub:
            return published.upload(made, str(to), private)
        return str(published.put(made, expanded(to)))


@start_folder()
def run(
    config: Config,
    *,
    observers: Sequence[Observer] = (),
    resume: Path | None = None,
    on_folder: Callable[[Path], None] | None = None,
    placement: Placement | None = None,
    resume_or_start: bool = False,
    checkpoint_url: str = "",
) -> Run:
    """Run a configuration to its end and draw its pictures; ``train`` and the command line both call this.

    Args:
        config: the checked configuration.
        observers: informed about the run.
        resume: folder of a run to resume.
        on_folder: called with the path of the run folder once it exists.
        placement: where the run's parts live; None: this machine.
        resume_or_start, checkpoint_url: as for ``train``.
    """
    from apexrl.launch import launch
    from apexrl.launch.run_claim import claim_by_name
    from apexrl.presets import check_installed
    from apexrl.topologies.validation import validate

    config = validate(config, elsewhere=isinstance(placement, Listen))
    check_installed(config)
    remember = FolderObserver(on_folder)
    if checkpoint_url:
        observers = [*observers, copies(checkpoint_url)]
    with ExitStack() as stack:
        claim = None
        if resume_or_start:
            tell = partial(_tell, observers)
            claim = stack.enter_context(closing(claim_by_name(config, placement, tell, checkpoint_url)))
            if claim.ended:
                remember.started(config, claim.folder.path)
                tell(f"run {from_here(claim.folder.path)} is done: {claim.ended}")
                return Run(claim.folder.path, None, config)
            config = claim.config
        with drawn(remember, observers):
            summary = launch(config, [remember, *observers], resume, placement=placement, claim=claim)
    assert remember.path is not None, "launch told no observer of its folder"
    return Run(remember.path, summary, config)


def _tell(observers: Sequence[Observer], text: str) -> None:
    for observer in observers:
        observer.message(text)


_run = run  # for functions with an argument of that name


def _given(trust: Sequence[str]) -> tuple[str, ...]:
    return (trust,) if isinstance(trust, str) else tuple(trust)


def _config(run: str | Path | Run, env: Callable[..., Any] | None) -> Config | None:
    """The configuration of a run of this program; None: its folder has it."""
    config = run.config if isinstance(run, Run) else None
    if config is None or env is None:
        return config
    return dataclasses.replace(config, env=dataclasses.replace(config.env, env=env))


def _folder(run: str | Path | Run) -> RunFolder:
    """The folder of a run; of a published agent what is brought to ``runs``."""
    path = run.path if isinstance(run, Run) else run
    if isinstance(path, str) and path.startswith("hf:"):
        from apexrl.evaluation.published import fetch

        path = fetch(path, Path("runs"))
    return RunFolder.open(path)
