"""Benchmarks of the page that shows runs: ``python benchmarks/dashboard/run.py QUESTION [--help]``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.lib.questions import answer

QUESTIONS = {
    "paint": "With 200 runs and a live one of 1,000 workers: how soon does a browser show something, and everything?",
    "cost": "How much slower is training while that page is open?",
}

if __name__ == "__main__":
    answer("dashboard", QUESTIONS)
