"""The public functions for hosts that help a run on another host: ``join``, ``join_envs``, ``stand_by``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from apexrl.api import Run
from apexrl.config.paths import absolute, expanded, start_folder
from apexrl.config.placement import Listen
from apexrl.errors import ConfigError
from apexrl.links.tcp.tls import ClientTls
from apexrl.report.run_observers import copies, drawn, panels
from apexrl.run.callback_observer import callback_observers
from apexrl.run.callbacks import Callback, StatusFunction
from apexrl.run.log_lines import LogFormat
from apexrl.run.observers import FolderObserver
from apexrl.run.status import Observer


@start_folder()
def join(
    url: str,
    run: str,
    *,
    actors: int = 0,
    learners: int = 0,
    out: str = "runs",
    env_kwargs: Mapping[str, Any] | None = None,
    trust: Sequence[str] = (),
    token: str = "",
    callbacks: Callback | StatusFunction | Sequence[Callback | StatusFunction] = (),
    show: bool = True,
    log_format: LogFormat = "text",
    observers: Sequence[Observer] = (),
    on_folder: Callable[[Path], None] | None = None,
) -> Run:
    """Run actors on this host for a run whose learner is on another host, until the run ends.

    Args:
        url: of the Redis server.
        run: the run's name on that server; the run may be started later.
        actors: actor processes; 0: as many as the run's configuration says.
        learners: 1: this host also brings a learner, which learns from its actors. It makes every update with the
            run's other learners (``apex`` and ``impala``), or sends gradients to its parameter servers (``gorila``).
        out: folder of run folders; this host's part of the run gets its own, with logs and a summary.
        env_kwargs: keyword arguments of the environment that differ on this host.
        trust: your own modules from which the run may name an environment, an agent or a network.
        token: shared with the learner, which signs the run's record with it; then the run may name any module.
        callbacks: as for ``train``, with the status of this host's part of the run.
        show: as for ``train``.
        log_format: of lines that are printed and of the logs of roles here: ``text`` or ``json``.
        observers: informed about this host's part of the run.
        on_folder: called with the path of the run folder once it exists.

    Raises:
        LinkError: the server cannot be reached or is not suitable, or the learner or the server was away for too long.
        ConfigError, EnvError: the environment differs here or cannot be made (the message names this host), or the run
            names code of a module that is not trusted.
        ExhaustedError: the run has too few free slots.
    """
    from apexrl import launch

    def run_here(watching: Sequence[Observer]) -> dict[str, Any]:
        here = {
            "actors": actors,
            "learners": learners,
            "out": out,
            "env_kwargs": env_kwargs,
            "trust": trust,
            "log_format": log_format,
        }
        return launch.join(url, run, watching, **here, token=token)

    return _observed(run_here, callbacks, panels(show, log_format), observers, on_folder)


@start_folder()
def join_envs(
    address: str,
    token: str,
    *,
    tls: ClientTls | None = None,
    actors: int = 0,
    out: str = "runs",
    env_kwargs: Mapping[str, Any] | None = None,
    trust: Sequence[str] = (),
    callbacks: Callback | StatusFunction | Sequence[Callback | StatusFunction] = (),
    show: bool = True,
    log_format: LogFormat = "text",
    observers: Sequence[Observer] = (),
    on_folder: Callable[[Path], None] | None = None,
) -> Run:
    """Run workers on this host for a run that listens on another host, until the run ends.

    The run's topology is ``seed`` or ``ga3c``, whose workers step environments alone, or ``a3c`` with parameter
    servers, whose workers also compute gradients.

    Args:
        address: HOST:PORT at which the run listens, now or later.
        token: of the run.
        tls: ``apexrl.links.tcp.tls.ClientTls``, which verifies the run's certificate; None: no TLS.
        actors: worker processes; 0: as many as the run has on its own host, at least 1.
        out, env_kwargs, callbacks, show, log_format, observers, on_folder: as for ``join``.
        trust: your own modules from which the run may name an environment, and for ``a3c`` an agent or a network.

    Raises:
        LinkError: this host was refused, or the run was not started in time or away for too long.
        ConfigError, EnvError: as for ``join``.
        ExhaustedError: the run has too few free slots.
    """
    from apexrl import launch

    try:
        where = Listen(address, token).address
    except ValueError:
        raise ConfigError(f"{address!r} is not HOST:PORT (write an IPv6 address in brackets)") from None

    def run_here(watching: Sequence[Observer]) -> dict[str, Any]:
        here = {"actors": actors, "out": out, "env_kwargs": env_kwargs, "trust": trust, "log_format": log_format}
        return launch.join_envs(where, token, watching, tls=tls, **here)

    return _observed(run_here, callbacks, panels(show, log_format), observers, on_folder)


@start_folder()
def stand_by(
    url: str,
    run: str,
    *,
    name: str = "",
    out: str = "runs",
    token: str = "",
    trust: Sequence[str] = (),
    checkpoint_url: str = "",
    callbacks: Callback | StatusFunction | Sequence[Callback | StatusFunction] = (),
    show: bool = True,
    log_format: LogFormat = "text",
    observers: Sequence[Observer] = (),
    on_folder: Callable[[Path], None] | None = None,
) -> Run:
    """Wait until the learner of a run on another host is gone, and go on in its place from the newest checkpoint.

    Args:
        url: of the Redis server.
        run: the run's name on that server; the run may be started later.
        name: of the run folder; empty: as the run.
        out: folder of run folders, on a file system that both hosts share.
        token: with which the learner signs the run's record; empty: it is not signed.
        trust: your own modules from which the folder may name an environment, an agent or a network.
        checkpoint_url: object store with the copies of the learner's checkpoints, in place of a shared file system.
        callbacks, show, observers, on_folder: as for ``join``.
        log_format: of lines that are printed: ``text`` or ``json``.

    Returns:
        The run. When it ended without this standby, its summary has ``stopped_by`` ``finished``.

    Raises:
        LinkError: the server cannot be reached or is not suitable, or was away for too long.
        WaitTimeout: there was no run folder in time.
        ConfigError: the folder is not that of the run, or names code of a module that is not trusted.
        OwnershipError: another run has taken the name, or another learner has replaced this one.
        WorkerError, SnapshotError: as for ``resume``.
    """
    from apexrl import launch

    watching: list[Observer] = [*panels(show, log_format), *observers, *callback_observers(callbacks)]
    if checkpoint_url:
        watching.append(copies(checkpoint_url))
    folder = FolderObserver(on_folder)
    with drawn(folder, watching):
        where = {"name": name, "out": out, "token": token, "trust": trust, "checkpoint_url": checkpoint_url}
        summary = launch.stand_by(url, run, [folder, *watching], **where)
    return Run(folder.path or absolute(expanded(out)) / (name or run), summary)


def _observed(
    run_here: Callable[[Sequence[Observer]], dict[str, Any]],
    callbacks: Callback | StatusFunction | Sequence[Callback | StatusFunction],
    shown: Sequence[Observer],
    observers: Sequence[Observer],
    on_folder: Callable[[Path], None] | None,
) -> Run:
    """Run this host's part to its end, watched by the panel, the observers and the callbacks."""
    folder = FolderObserver(on_folder)
    summary = run_here([folder, *shown, *observers, *callback_observers(callbacks)])
    assert folder.path is not None, "launch reported no folder to its observers"
    return Run(folder.path, summary)
