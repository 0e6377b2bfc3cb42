"""The commands ``dashboard``, ``watch`` and ``report``: runs in a browser, and as one file."""

from __future__ import annotations

import hmac
import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from apexrl.cli.browser_flags import Watch
    from apexrl.dashboard.answers import Answers


def dashboard(words: list[str]) -> int:
    """show runs in a browser, while they go on"""
    from apexrl.cli import browser_flags, flags

    wanted = flags.parse(browser_flags.Dashboard, words, "dashboard")
    from apexrl.dashboard.answers import Answers
    from apexrl.dashboard.run_index import RunIndex

    os.nice(10)  # training goes first
    return _serve(Answers(RunIndex(wanted.runs)), wanted.address, wanted.token_file)


def watch(words: list[str]) -> int:
    """play a run's newest weights in the browser, or film its best, median and worst episodes"""
    from apexrl.cli import browser_flags, flags

    wanted = flags.parse(browser_flags.Watch, words, "watch")
    if wanted.record:
        return _record(wanted)
    from apexrl.dashboard.answers import Answers
    from apexrl.dashboard.player import player_of
    from apexrl.dashboard.run_index import RunIndex
    from apexrl.run.folder import RunFolder

    index = RunIndex(RunFolder.open(wanted.run).path)
    player = player_of(wanted.run, next(iter(index.runs()), ""), wanted.trust)
    os.nice(10)  # training goes first
    player.start()
    try:
        return _serve(Answers(index, player), wanted.address, wanted.token_file, f"#/run/{quote(player.name, safe='')}")
    finally:
        player.stop()


def _record(wanted: Watch) -> int:
    from apexrl.evaluation.chosen_films import FILMS, film_chosen
    from apexrl.evaluation.loaded_agent import load_agent, trusted_config
    from apexrl.run.folder import RunFolder

    folder = RunFolder.open(wanted.run)
    config = trusted_config(folder, wanted.trust)
    loaded = load_agent(folder, wanted.checkpoint, config=config)
    for name, film in film_chosen(loaded, config, folder.path / FILMS, wanted.record, wanted.seed).items():
        print(f"{name}: {film}")
    return 0


def _serve(answers: Answers, address: str, token_file: str, place: str = "") -> int:
    """Serve until Ctrl-C; ``place``: where on the page the printed address leads."""
    from apexrl.dashboard import server

    with server.listen(address) as listening:
        token = "" if server.is_this_machine(listening) else _token(token_file)
        print(f"{answers.index.root} is shown at {server.url_of(listening, token)}{place} until Ctrl-C", flush=True)
        if token:
            print("Whoever has this address can read these runs; it is not encrypted.", file=sys.stderr)
        try:
            server.serve(answers, listening, token)
        except KeyboardInterrupt:
            print()
    return 0


def _token(file: str) -> str:
    """Made from the shared token, which also lets hosts into runs and must not travel."""
    from apexrl.links.tokens import shared_token

    shared = shared_token(file, make=True) or secrets.token_urlsafe(24)
    return hmac.new(shared.encode(), b"apexrl dashboard", "sha256").hexdigest()


def report(words: list[str]) -> int:
    """write what the dashboard shows into one HTML file"""
    from apexrl.cli import browser_flags, flags

    wanted = flags.parse(browser_flags.Report, words, "report")
    from apexrl.dashboard.one_file import write_report

    print(write_report(wanted.runs, Path(wanted.out)))
    return 0
