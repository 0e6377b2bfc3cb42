"""Benchmarks of topologies: ``python benchmarks/topologies/run.py QUESTION [--help]``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.lib.questions import answer

QUESTIONS = {
    "learning": "What does every topology learn, within how many steps?",
    "rates": "How many steps does every topology learn from per second?",
    "kills": "What becomes of a run when any of its roles is killed?",
    "peers": "How many steps learned from per second, beside Sample Factory and RLlib?",
}

if __name__ == "__main__":
    answer("topologies", QUESTIONS)
