"""Benchmarks of runs on Ray: ``python benchmarks/ray/run.py QUESTION [--help]``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.lib.questions import answer

QUESTIONS = {
    "nodes": "Is CartPole solved on a Ray of three nodes, also when one of them is killed?",
    "scale": "Ape-X at the paper's scale: what gives way first, at how many times its rates?",
    "shards": "Do several shards draw as one replay, and how fast are they?",
    "rllib": "How many steps learned from, and how soon is CartPole solved, beside RLlib?",
    "learners": "How many steps do learners on two nodes learn from, beside one machine's and RLlib's?",
    "rllib_apex": "How fast is Ape-X on Ray, beside RLlib's old Ape-X?",
}

if __name__ == "__main__":
    answer("ray", QUESTIONS)
