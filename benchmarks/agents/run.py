"""Benchmarks of agents: ``python benchmarks/agents/run.py QUESTION [--help]``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.lib.questions import answer

QUESTIONS = {
    "memory": "How much of the whole observation's return does a memory get without velocities?",
    "learning": "What does every agent reach, within how many steps?",
    "sb3": "The same updates from the same steps: how long, beside Stable-Baselines3?",
    "layers": "Which share of the processor's peak does each layer of the Atari network reach?",
    "products": "How long does an update take with MKL's matrix products, and with oneDNN's?",
    "updates": "How many updates a second, beside a plain PyTorch loop?",
    "replay_loop": "How many updates a second with a prioritized replay, beside TorchRL's?",
}

if __name__ == "__main__":
    answer("agents", QUESTIONS)
