"""Ape-X on the replay and NumPy alone: explorers in processes, one learner, a model. Any explorer may be killed.

python examples/replay_skeleton.py"""

from multiprocessing import Process, parent_process
from time import monotonic

import numpy as np

from apexrl.replay import Field, Replay
from apexrl.shared.weights_board import WeightsBoard

EXPLORERS, EPISODES, UPDATES, BATCH, SYNC_EVERY = 3, 6, 3_000, 64, 50
FIELDS = {"obs": Field(3, "int64"), "act": Field((), "int64"), "rew": Field((), "float64")}
FIELDS |= {"next_obs": Field(3, "int64"), "done": Field((), "bool")}


def step(obs, act):  # put your simulator here: a ball falls 9 rows; actions 0, 1, 2 move the paddle left, not, right
    row, ball, paddle = obs[0] + 1, obs[1], min(max(obs[2] + act - 1, 0), 4)
    rew = 0.0 if row < 9 else 1.0 if ball == paddle else -1.0
    return (row, ball, paddle), rew, row == 9


class Model:  # put your network here: this one is a table of Q-values
    def __init__(self):
        self.weights = np.zeros((10, 5, 5, 3))

    def get_action(self, obs):
        return self.weights[obs].argmax()

    def TD_error(self, sample):
        next_q = self.weights[*sample["next_obs"].T].max(1)
        return sample["rew"] + 0.99 * ~sample["done"] * next_q - self.weights[*sample["obs"].T, sample["act"]]

    def abs_TD_error(self, sample):
        return np.abs(self.TD_error(sample))

    def train(self, sample, importance):
        self.weights[*sample["obs"].T, sample["act"]] += 0.1 * importance * self.TD_error(sample)


def episode(model, epsilon, rng):
    obs, done = (0, rng.integers(5), 2), False
    while not done:
        act = rng.integers(3) if rng.random() < epsilon else model.get_action(obs)
        next_obs, rew, done = step(obs, act)
        yield obs, act, rew, next_obs, done
        obs = next_obs


def explorer(replay, board, number):
    model, version, writer, rng = Model(), 0, replay.writer(), np.random.default_rng(number)
    epsilon = 0.4 ** (1 + 7 * number / (EXPLORERS - 1))  # Horgan et al. 2018, §4.1
    while parent_process().is_alive():
        if newest := board.latest(newer_than=version):
            version, model.weights = newest[0], newest[1]["q"]
        rows = [row for _ in range(EPISODES) for row in episode(model, epsilon, rng)]
        local = {name: np.array(column) for name, column in zip(FIELDS, zip(*rows, strict=True), strict=True)}
        writer.extend(local, priorities=model.abs_TD_error(local))


def main():
    model, board = Model(), WeightsBoard(nbytes=1 << 16)
    replay = Replay(100_000, FIELDS, alpha=0.6, writers=EXPLORERS, min_size=1_000)
    for number in range(EXPLORERS):
        Process(target=explorer, args=(replay, board, number), daemon=True).start()
    began = monotonic()
    for update in range(1, UPDATES + 1):
        batch = replay.sample(BATCH, beta=0.4, timeout=30)
        model.train(batch.data, batch.weights)
        replay.update_priorities(batch.keys, model.abs_TD_error(batch.data))
        if update % SYNC_EVERY == 0:
            board.publish({"q": model.weights}, version=update)
    rates = np.array([UPDATES, replay.stats()["inserted"]]) / (monotonic() - began)
    rewards = [row[2] for seed in range(100) for row in episode(model, 0.0, np.random.default_rng(seed))]
    print(f"{rates[0]:.0f} updates/s, {rates[1]:.0f} steps/s, return {sum(rewards) / 100:.2f}")


if __name__ == "__main__":
    main()
