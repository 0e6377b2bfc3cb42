"""Benchmarks of runs with thousands of actors, simulated: ``python benchmarks/scale/run.py QUESTION [--help]``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.lib.questions import answer

QUESTIONS = {
    "control_plane": "10,000 actors: they join, weights reach all, server, links and learner fail: what gives way?",
    "gateway": "Environment workers at one TCP gateway: how many does it bear, how long do they wait?",
}

if __name__ == "__main__":
    answer("scale", QUESTIONS)
