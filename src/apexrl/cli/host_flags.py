"""Command-line flags of hosts that work for a run elsewhere, and of commands about such runs."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from apexrl.cli.observer_flags import ObserverFlags
from apexrl.errors import ConfigError
from apexrl.links.tcp.tls import ClientTls
from apexrl.run.log_lines import LogFormat

REDIS_URL = "APEXRL_REDIS_URL"
"""Environment variable in place of ``--redis``, which shows in the list of processes with its password."""

Url = Annotated[str, tyro.conf.arg(metavar="URL")]
RunName = Annotated[str, tyro.conf.arg(metavar="NAME")]
Address = Annotated[str, tyro.conf.arg(metavar="HOST:PORT")]
File = Annotated[str, tyro.conf.arg(metavar="FILE")]
Modules = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="MODULE")]

# None: the flag was not given. Each description says what holds then.
GivenInt = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")]
GivenFloat = Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint="")]
GivenActions = Annotated[
    Literal["greedy", "sampled"] | None, tyro.conf.arg(metavar="greedy|sampled", help_behavior_hint="")
]


@dataclass(frozen=True)
class Actor(ObserverFlags):
    """Run actors for a run whose learner is on another host. May be started before the learner.

    Settings come from the run. Its environment must be installed here too; a module of your own that belongs to no
    installed package needs --trust MODULE. Ends when the run ends.
    """

    redis: Url = ""
    """Redis server of the run: redis://USER:PASSWORD@HOST:PORT, with TLS rediss://.
    Empty: the environment variable APEXRL_REDIS_URL."""
    run: RunName = ""
    """The run's name on that server."""
    actors: int = 0
    """Actor processes on this host; 0: as many as the run's configuration says."""
    learners: int = 0
    """1: this host also brings a learner, which learns from its actors.
    With apex and impala it makes every update with the run's other learners.
    With gorila it sends gradients to the run's parameter servers."""
    out: str = "runs"
    """Folder that holds the run folders; this host writes into NAME@HOST."""
    log_format: LogFormat = "text"
    """Format of lines that are printed, and of the logs of roles here. json: an object a line, also on a terminal."""
    env_kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Keyword arguments of the environment's constructor that differ on this host."""
    trust: Modules = ()
    """Module or package whose environments, agents and networks the run may name.
    Other code that is not installed is refused. May be given several times."""
    token_file: File = ""
    """File with the learner's token. A run signed with it needs no --trust, and one without it is refused.
    Empty: the environment variable APEXRL_TOKEN, if it is set."""


@dataclass(frozen=True)
class Standby(ObserverFlags):
    """Wait until the learner of a run on another host is gone, and go on in its place from the newest checkpoint.

    May be started before the learner. Settings come from the run folder, which both hosts must share. Environment and
    agent are looked at while it waits. Ends when the run ends.
    """

    redis: Url = ""
    """Redis server of the run: redis://USER:PASSWORD@HOST:PORT, with TLS rediss://.
    Empty: the environment variable APEXRL_REDIS_URL."""
    run: RunName = ""
    """The run's name on that server."""
    name: RunName = ""
    """Name of the run folder; empty: as the run."""
    out: str = "runs"
    """Folder that holds the run folders, on a file system that both hosts share."""
    checkpoint_url: Annotated[str, tyro.conf.arg(metavar="URL")] = ""
    """Object store with the copies of the learner's checkpoints, in place of a shared file system.
    Its own copies go there, too."""
    log_format: LogFormat = "text"
    """Format of lines that are printed. json: an object a line, also on a terminal."""
    token_file: File = ""
    """File with the learner's token, which signs the run's record.
    Empty: the environment variable APEXRL_TOKEN, if it is set."""
    trust: Modules = ()
    """Module or package whose environments, agents and networks the folder may name.
    Other code that is not installed is refused. May be given several times."""


@dataclass(frozen=True)
class Envs(ObserverFlags):
    """Run workers for a run on another host that listens (topology seed, ga3c or a3c). May be started first.

    Of seed and ga3c, workers have no agent: the inference server beside the learner chooses their actions. Workers of
    a3c have one, and send gradients. Settings come from the run. Its environment must be installed here too. Ends when
    the run ends.
    """

    connect: Address = ""
    """Address at which the run listens (its --listen)."""
    token_file: File = ""
    """File with the run's token, copied from the learner's host. Empty: the environment variable APEXRL_TOKEN."""
    tls_fingerprint: Annotated[str, tyro.conf.arg(metavar="sha256:HEX")] = ""
    """Use TLS, and accept only the certificate with this fingerprint, which the run prints when it begins."""
    tls_ca: File = ""
    """Use TLS, and accept a certificate for the host in --connect that an authority in this file (PEM) signed."""
    tls_cert: File = ""
    """This host's own certificate (PEM), for a run that has --tls-ca."""
    tls_key: File = ""
    """Private key of --tls-cert; empty: the same file."""
    actors: int = 0
    """Worker processes on this host; 0: as many as on the learner's host, at least 1."""
    out: str = "runs"
    """Folder that holds the run folders; this host writes into NAME@HOST."""
    log_format: LogFormat = "text"
    """Format of lines that are printed, and of the logs of roles here. json: an object a line, also on a terminal."""
    env_kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Keyword arguments of the environment's constructor that differ on this host."""
    trust: Modules = ()
    """Module or package whose environments, and of a3c whose agents and networks, the run may name.
    Other code that is not installed is refused. May be given several times."""


@dataclass(frozen=True)
class Status:
    """Show the runs of a Redis server or a Ray cluster, the processes of one of them, or the run in a folder."""

    folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[RUN]")] = ""
    """Run folder, which records where the run is; without it, give --redis or --ray."""
    redis: Url = ""
    """Redis server: redis://USER:PASSWORD@HOST:PORT, with TLS rediss://.
    Empty: the environment variable APEXRL_REDIS_URL."""
    ray: Annotated[str, tyro.conf.arg(metavar="auto|HOST:PORT")] = ""
    """Ray cluster: auto for the one on this machine, or the address of its head node.
    With RUN: the address of its cluster, if that is on another machine."""
    run: RunName = ""
    """Name of one run; empty: all."""
    watch: bool = False
    """Update the display until Ctrl-C."""


@dataclass(frozen=True)
class Stop:
    """End a run with a final checkpoint; its actors leave.

    A run in a folder gets SIGTERM, on the machine of its main process. That does what Ctrl-C does: it is not evaluated
    once more, and a second SIGTERM ends it at once. A run that is found through Redis is evaluated once more.
    """

    folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[RUN]")] = ""
    """Run folder; without it, give --redis and --run."""
    redis: Url = ""
    """Redis server: redis://USER:PASSWORD@HOST:PORT, with TLS rediss://.
    Empty: the environment variable APEXRL_REDIS_URL."""
    run: RunName = ""
    """Name of the run."""
    wait_seconds: float = 60.0
    """Seconds to wait for its end; 0: do not wait."""


@dataclass(frozen=True)
class Drain:
    """Have a host leave a run when everything that it has is committed, and keep it away.

    Its actors finish what is in hand, the slots become free, and apexrl actor on that host is refused (exit code 75)
    until --undo. A Redis server that comes back empty has forgotten it.
    """

    host: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="HOST")] = ""
    """Host, as apexrl status names it."""
    redis: Url = ""
    """Redis server: redis://USER:PASSWORD@HOST:PORT, with TLS rediss://.
    Empty: the environment variable APEXRL_REDIS_URL."""
    run: RunName = ""
    """Name of the run."""
    undo: bool = False
    """Let the host join again."""
    wait_seconds: float = 120.0
    """Seconds to wait until it has left; 0: do not wait."""


@dataclass(frozen=True)
class Scale:
    """Change the number of actors of a run in a folder, on this machine or on Ray, or of hosts of a run over Redis.

    A run in a folder starts more, or lets some end, and has that number whenever it is resumed, too. It may have as
    many as it began with, or as its --actor-slots say.

    A host hands over what it has, leaves, and joins again with that number, now and whenever it joins. Others go on
    meanwhile.
    """

    who: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|HOST|all")] = ""
    """Run folder; with --redis and --run: a host, as apexrl status names it, or all: each one, also those to come."""
    actors: int = 0
    """Actor processes, of each host."""
    redis: Url = ""
    """Redis server: redis://USER:PASSWORD@HOST:PORT, with TLS rediss://.
    Empty: the environment variable APEXRL_REDIS_URL."""
    run: RunName = ""
    """Name of the run."""


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
