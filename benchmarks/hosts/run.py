"""Benchmarks of runs over several hosts: ``python benchmarks/hosts/run.py QUESTION [--help]``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.lib.questions import answer

QUESTIONS = {
    "cartpole": "What do slow links cost, beside one machine?",
    "elastic": "Hosts come, are killed, and the server forgets everything: is every step accounted for?",
    "standby": "The learner's whole host dies: how soon does a standby learn on?",
    "transport": "How fast do experience and weights travel, beside a plain redis-py loop?",
    "slow_steps": "A simulator that waits: how much faster are more actors on four hosts?",
    "fuzz": "Does any of 100,000 bad frames reach the replay?",
    "thousand_hosts": "What does one Redis server hold for a thousand hosts, and how busy is it?",
}

if __name__ == "__main__":
    answer("hosts", QUESTIONS)
