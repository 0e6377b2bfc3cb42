"""The library's face for hosts that work for a run whose learner is on another one: ``join``, ``join_envs``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from apexrl.api import Callback, Calls, Remember, Run, panels
from apexrl.config.placement import Listen
from apexrl.errors import ConfigError
from apexrl.links.tcp.tls import ClientTls
from apexrl.run.status import Observer


def join(
    url: str,
    run: str,
    *,
    actors: int = 0,
    out: str = "runs",
    env_kwargs: Mapping[str, Any] | None = None,
    trust: Sequence[str] = (),
    token: str = "",
    callbacks: Sequence[Callback] = (),
    show: bool = True,
    observers: Sequence[Observer] = (),
    on_folder: Callable[[Path], None] | None = None,
) -> Run:
    """Bring actors to a run whose learner works on another host, and wait until it is over.

    Args:
        url: of the Redis server.
        run: the run's name there; it may be started later.
        actors: actor processes; 0: as many as its configuration says.
        out: folder of run folders: this host's part of the run gets one, with logs and a summary.
        env_kwargs: keyword arguments of the environment that are different on this host.
        trust: modules of yours of which the run may name an environment, an agent or a network.
        token: shared with the learner, which signs what it tells the hosts; then the run may name what it likes.
        callbacks: as for ``train``, with this host's part of the run.
        show: as for ``train``.
        observers: who else watches.
        on_folder: told the path of the run folder as soon as there is one.

    Raises:
        LinkError: the server cannot be reached, or is not fit; or learner or server stayed away for too long.
        ConfigError, EnvError: the environment is another one here, or cannot be made; the message names this host. Or
            the run names something to be called here that is not of a trusted module.
        ExhaustedError: the run has too few slots free.
    """
    from apexrl import launch

    remember = Remember(on_folder)
    watching = [remember, *panels(show), *observers, *(Calls(callback) for callback in callbacks)]
    summary = launch.join(url, run, watching, actors=actors, out=out, env_kwargs=env_kwargs, trust=trust, token=token)
    assert remember.path is not None, "launch told no observer of its folder"
    return Run(remember.path, summary)


def join_envs(
    address: str,
    token: str,
    *,
    tls: ClientTls | None = None,
    actors: int = 0,
    out: str = "runs",
    env_kwargs: Mapping[str, Any] | None = None,
    trust: Sequence[str] = (),
    callbacks: Sequence[Callback] = (),
    show: bool = True,
    observers: Sequence[Observer] = (),
    on_folder: Callable[[Path], None] | None = None,
) -> Run:
    """Bring environment workers to a run that listens on another host, and wait until it is over.

    Its topology is ``seed`` or ``ga3c``.

    Args:
        address: HOST:PORT at which the run listens, or will.
        token: of the run.
        tls: ``apexrl.links.tcp.tls.ClientTls``, by which the run is known; None: it listens without TLS.
        actors: worker processes; 0: as many as the run has on its own, at least 1.
        out, env_kwargs, callbacks, show, observers, on_folder: as for ``join``.
        trust: modules of yours of which the run may name an environment.

    Raises:
        LinkError: this host is refused, nobody started the run, or it stayed away for too long.
        ConfigError, EnvError: the environment is another one here, or cannot be made; the message names this host. Or
            the run names something to be called here that is not of a trusted module.
        ExhaustedError: the run has too few slots free.
    """
    from apexrl import launch

    try:
        where = Listen(address, token).address
    except ValueError:
        raise ConfigError(f"{address!r} is no HOST:PORT (an IPv6 address stands in brackets)") from None
    remember = Remember(on_folder)
    watching = [remember, *panels(show), *observers, *(Calls(callback) for callback in callbacks)]
    summary = launch.join_envs(
        where, token, watching, tls=tls, actors=actors, out=out, env_kwargs=env_kwargs, trust=trust
    )
    assert remember.path is not None, "launch told no observer of its folder"
    return Run(remember.path, summary)
