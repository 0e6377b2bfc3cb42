"""Benchmarks of action masks: ``python benchmarks/masks/run.py QUESTION [--help]``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.lib.questions import answer

QUESTIONS = {
    "impossible": "Does any agent, in any topology, ever choose an impossible action?",
    "cost": "How much slower are runs with masks, and runs without than they were before?",
    "cpu": "The same by CPU time, on a machine that has other work",
}

if __name__ == "__main__":
    answer("masks", QUESTIONS)
