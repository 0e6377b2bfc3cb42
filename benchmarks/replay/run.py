"""Benchmarks of the replay: ``python benchmarks/replay/run.py QUESTION [--help]``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.lib.questions import answer

QUESTIONS = {
    "speed": "How fast is the replay, beside its peers?",
    "kills": "What hangs, is torn or is left behind when workers and learners are killed?",
    "soak": "Does random use for an hour agree with a plain Python twin, in constant memory?",
    "snapshot": "How fast is a replay saved and loaded?",
    "ragged": "How much memory do ragged fields take, and how fast are they sampled?",
    "compressed": "How much memory do compressed images take, and what do acting and sampling pay for it?",
}

if __name__ == "__main__":
    answer("replay", QUESTIONS)
