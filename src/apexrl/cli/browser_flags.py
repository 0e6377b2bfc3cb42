"""Flags of the commands that show runs in a browser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from apexrl.cli.host_flags import File, Modules

Folder = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUNS")]


@dataclass(frozen=True)
class Dashboard:
    """Show runs in a browser, those that go on too: curves, policy lag, workers, replay, diagnosis, films, settings,
    and groups of runs beside each other. Needs apexrl[dashboard]. Ends with Ctrl-C.

    Run folders are only read. Nothing is fetched from the internet.
    """

    runs: Folder = "runs"
    """Folder that holds run folders, also those of comparisons below it; or one run folder."""
    address: Annotated[str, tyro.conf.arg(metavar="[HOST:]PORT")] = "127.0.0.1:6886"
    """Where to listen; port 0 takes any free one. Under another host than this machine's own 127.0.0.1, a token is
    needed: it is part of the address that is printed."""
    token_file: File = ""
    """File with a secret, made if missing, of which that token is made: it stays the same from start to start.
    Empty: the environment variable APEXRL_TOKEN, or else a new secret."""


@dataclass(frozen=True)
class Watch:
    """Play greedy episodes with the newest weights of a run in a browser, beside all else of the dashboard; or with
    --record film the best, the median and the worst of some episodes, with what the agent expected drawn below.

    Nothing is played while nobody looks. Weights are read from checkpoints; newer ones are taken between episodes.
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder, of a run that goes on or has ended."""
    address: Annotated[str, tyro.conf.arg(metavar="[HOST:]PORT")] = "127.0.0.1:6886"
    """Where to listen, as with apexrl dashboard."""
    token_file: File = ""
    """File with a secret for another address, as with apexrl dashboard."""
    record: int = 0
    """Play so many episodes, keep the films of three in RUN/films, and end; 0: play in the browser.
    Needs apexrl[video]."""
    checkpoint: Annotated[str, tyro.conf.arg(metavar="best|latest|FILE")] = "best"
    """Weights to record with; in the browser it is always the newest ones."""
    seed: int = 1_000_000_007
    """Seed of the recorded episodes; training uses others."""
    trust: Modules = ()
    """Module or package whose environments, agents and networks the folder may name.
    Other code that is not installed is refused. May be given several times."""


@dataclass(frozen=True)
class Report:
    """Write what the dashboard shows of runs into one HTML file, which needs no server, no network and no apexrl."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folders, or folders that hold some."""
    out: File = "report.html"
    """File to write; one that is there is replaced."""
