"""The commands ``dashboard`` and ``report``: runs in a browser, and as one file."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path


def dashboard(words: list[str]) -> int:
    """show runs in a browser, while they go on"""
    from apexrl.cli import browser_flags, flags

    wanted = flags.parse(browser_flags.Dashboard, words, "dashboard")
    from apexrl.dashboard import server
    from apexrl.dashboard.answers import Answers
    from apexrl.dashboard.run_index import RunIndex

    answers = Answers(RunIndex(wanted.runs))
    with server.listen(wanted.address) as listening:
        token = "" if server.is_this_machine(listening) else _token(wanted.token_file)
        print(f"{answers.index.root} is shown at {server.url_of(listening, token)} until Ctrl-C", flush=True)
        if token:
            print("Whoever has this address can read these runs; it is not encrypted.", file=sys.stderr)
        try:
            server.serve(answers, listening, token)
        except KeyboardInterrupt:
            print()
    return 0


def _token(file: str) -> str:
    from apexrl.links.tokens import shared_token

    return shared_token(file, make=True) or secrets.token_urlsafe(24)


def report(words: list[str]) -> int:
    """write what the dashboard shows into one HTML file"""
    from apexrl.cli import browser_flags, flags

    wanted = flags.parse(browser_flags.Report, words, "report")
    from apexrl.dashboard.one_file import write_report

    print(write_report(wanted.runs, Path(wanted.out)))
    return 0
