"""Only the replay, in a loop of your own: explorers in processes, one learner, a model to fill in.

    python examples/replay_skeleton.py

The skeleton of the article that made this popular, without its locks: an explorer may be killed at any moment.
"""

from __future__ import annotations

import multiprocessing
import time

import numpy as np

from apexrl.replay import Field, Replay

FIELDS = {
    "obs": Field((4,), "float32"), "act": Field((), "int64"), "rew": Field((), "float32"),
    "next_obs": Field((4,), "float32"), "done": Field((), "bool"),
}  # fmt: skip
EXPLORERS, UPDATES, BATCH, SYNC_EVERY = 3, 2_000, 256, 100


class Model:
    """Put your network here."""

    def __init__(self):
        self.weights = np.zeros(4, np.float32)

    def get_action(self, obs):
        return int(obs @ self.weights > 0)

    def abs_TD_error(self, sample):
        return np.abs(sample["rew"]) + 0.1

    def train(self, sample, weights):
        self.weights += 1e-3 * np.average(sample["obs"], axis=0, weights=weights)


def explorer(replay, board, stop, seed):
    model, rng, writer, version = Model(), np.random.default_rng(seed), replay.writer(), 0
    obs, rows = rng.normal(size=4).astype("f4"), []
    while not stop.is_set():
        newest = board.latest(newer_than=version)
        if newest:
            version, model.weights = newest[0], newest[1]["w"]
        next_obs = rng.normal(size=4).astype("f4")  # env.step(model.get_action(obs))
        rows.append((obs, model.get_action(obs), obs.sum(), next_obs, rng.random() < 0.05))
        obs = next_obs
        if len(rows) == 50:
            columns = {
                n: np.array(c, f.dtype) for (n, f), c in zip(FIELDS.items(), zip(*rows, strict=True), strict=True)
            }
            writer.extend(columns, priorities=model.abs_TD_error(columns))
            rows = []


def main():
    from apexrl.weights import WeightsBoard

    model, stop = Model(), multiprocessing.Event()
    with Replay(1_000_000, FIELDS, alpha=0.6, writers=EXPLORERS, min_size=1_000) as replay:
        board = WeightsBoard(1 << 10)
        workers = [
            multiprocessing.Process(target=explorer, args=(replay, board, stop, seed), daemon=True)
            for seed in range(EXPLORERS)
        ]
        for worker in workers:
            worker.start()
        began = time.monotonic()
        for update in range(UPDATES):
            batch = replay.sample(BATCH, beta=0.4, timeout=30)
            model.train(batch.data, batch.weights)
            replay.update_priorities(batch.keys, model.abs_TD_error(batch.data))
            if update % SYNC_EVERY == 0:
                board.publish({"w": model.weights}, update + 1)
        print(
            f"{UPDATES / (time.monotonic() - began):.0f} updates/s, {replay.stats()['inserted']} transitions inserted"
        )
        stop.set()


if __name__ == "__main__":
    main()
