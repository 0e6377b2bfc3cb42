"""Command-line flags of hosts that work for a run elsewhere: ``actor``, ``envs``, ``status``, ``stop``."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from apexrl.errors import ConfigError
from apexrl.links.tcp.tls import ClientTls

REDIS_URL = "APEXRL_REDIS_URL"
"""Environment variable in place of ``--redis``, which shows in the list of processes with its password."""

Url = Annotated[str, tyro.conf.arg(metavar="URL")]
RunName = Annotated[str, tyro.conf.arg(metavar="NAME")]
Address = Annotated[str, tyro.conf.arg(metavar="HOST:PORT")]
File = Annotated[str, tyro.conf.arg(metavar="FILE")]
Modules = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="MODULE")]


@dataclass(frozen=True)
class Actor:
    """Bring actors to a run whose learner works on another host. It may be started before the learner.

    Settings come from the run; the environment must be installed here too. One of your own, MODULE:ID, whose module is
    of no installed package, wants --trust MODULE. Ends by itself when the run is over.
    """

    redis: Url = ""
    """Redis server of the run: redis://USER:PASSWORD@HOST:PORT, with TLS rediss://; else APEXRL_REDIS_URL."""
    run: RunName = ""
    """What the run is called there."""
    actors: int = 0
    """Actor processes on this host; 0: as many as the run's configuration says."""
    out: str = "runs"
    """Folder of run folders; this host's part of the run gets one, NAME@HOST."""
    env_kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Keyword arguments of the environment's constructor that are different on this host."""
    trust: Modules = ()
    """Module or package of your own, of which the run may name environments, an --agent or a --network on this host.
    May be given several times. All others are refused."""
    token_file: File = ""
    """Holds the learner's token: its run may name modules without --trust, and one without it is refused.
    Empty: APEXRL_TOKEN says it, if anything does."""


@dataclass(frozen=True)
class Envs:
    """Bring environment workers to a run on another host that listens (topology seed or ga3c). It may be
    started before.

    They have no agent: what to do, the inference server beside the learner tells them. Settings come from the run; the
    environment must be installed here too. Ends by itself when the run is over.
    """

    connect: Address = ""
    """Where the run listens."""
    token_file: File = ""
    """Holds the run's token, copied from the learner's host; empty: APEXRL_TOKEN says it."""
    tls_fingerprint: Annotated[str, tyro.conf.arg(metavar="sha256:HEX")] = ""
    """Use TLS, and believe only the run that has this certificate; the run prints it when it begins."""
    tls_ca: File = ""
    """Use TLS, and believe who has a certificate, for the name in --connect, of an authority in this file (PEM)."""
    tls_cert: File = ""
    """This host's own certificate (PEM), for a run that was given --tls-ca."""
    tls_key: File = ""
    """Private key of --tls-cert; empty: it stands in that file."""
    actors: int = 0
    """Worker processes on this host; 0: as many as the run has on its own, at least 1."""
    out: str = "runs"
    """Folder of run folders; this host's part of the run gets one, NAME@HOST."""
    env_kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Keyword arguments of the environment's constructor that are different on this host."""
    trust: Modules = ()
    """Module or package of your own, of which the run may name environments on this host.
    May be given several times. All others are refused."""


@dataclass(frozen=True)
class Status:
    """Show the runs at a Redis server or on a Ray cluster, every member of one of them, or the run of a folder."""

    folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[RUN]")] = ""
    """Run folder, which knows where it runs; without it, say --redis or --ray."""
    redis: Url = ""
    """Redis server: redis://USER:PASSWORD@HOST:PORT, with TLS rediss://; else APEXRL_REDIS_URL."""
    ray: Annotated[str, tyro.conf.arg(metavar="auto|HOST:PORT")] = ""
    """Ray cluster: auto, that of this machine, or the address of its head.
    With RUN: where its cluster is, if not on this machine."""
    run: RunName = ""
    """Which run there; empty: all."""
    watch: bool = False
    """Keep it live until Ctrl-C."""


@dataclass(frozen=True)
class Stop:
    """Ask a run to end in good order: final checkpoint and evaluation, then its actors leave."""

    redis: Url = ""
    """Redis server: redis://USER:PASSWORD@HOST:PORT, with TLS rediss://; else APEXRL_REDIS_URL."""
    run: RunName = ""
    """Which run."""
    wait_seconds: float = 60.0
    """How long to wait for its end; 0: not at all."""


def redis_url(given: str) -> str:
    """``--redis``, or what the environment says. The variable is taken out of there: simulators need no password.

    Raises:
        ConfigError: neither is there.
    """
    url = given or os.environ.pop(REDIS_URL, "")
    if not url:
        raise ConfigError(f"say which Redis server: --redis redis://USER:PASSWORD@HOST:PORT, or set {REDIS_URL}")
    return url


def run_name(given: str, command: str) -> str:
    """``--run``, which these commands cannot do without."""
    if not given:
        raise ConfigError(
            f"say which run: apexrl {command} --redis URL --run NAME (apexrl status --redis URL lists them)"
        )
    return given


def client_tls(wanted: Envs) -> ClientTls | None:
    """How the run is known to a host.

    Raises:
        ConfigError: TLS cannot be as it is wanted.
    """
    tls = ClientTls(wanted.tls_ca, wanted.tls_fingerprint, wanted.tls_cert, wanted.tls_key)
    if tls == ClientTls():
        return None
    if tls.key and not tls.cert:
        raise ConfigError("--tls-key means nothing without --tls-cert")
    tls.context()
    return tls
