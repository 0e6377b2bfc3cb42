"""The command line of a topic with several benchmarks: ``run.py QUESTION [flags]``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module


def answer(topic: str, questions: Mapping[str, str]) -> None:
    """Run ``main()`` of the topic's module that the first word names; the other words are its flags."""
    command, words = f"python benchmarks/{topic}/run.py", sys.argv[1:]
    if not words or words[0] not in questions:
        listed = "\n".join(f"  {name:<16}{question}" for name, question in questions.items())
        print(f"usage: {command} QUESTION [--help]\n\n{listed}")
        sys.exit(0 if words in (["-h"], ["--help"]) else 2)
    sys.argv = [f"{command} {words[0]}", *words[1:]]
    sys.exit(import_module(f"benchmarks.{topic}.{words[0]}").main())
