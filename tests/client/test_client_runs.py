"""Clients on a real server, with a learner's side in the test's hands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from redis_learner import CONFIG, RUN, SPEC, TRUST, LearnerSide, with_hosts
from safetensors.numpy import load_file

from apexrl import client
from apexrl.agents.exploration import slot_epsilons
from apexrl.client import ClientActor
from apexrl.errors import ApexrlError, ClosedError, ConfigError, ExhaustedError, LinkError, WaitTimeout
from apexrl.links.redis.run_record import stop_run
from apexrl.links.redis.server import Server
from apexrl.links.rounded_weights import lengthened, may_round, shortened
from apexrl.roles import Uplink
from apexrl.spec import ActionSpec
from redis_server import RedisServer

EXAMPLE = Path(__file__).parents[2] / "examples" / "external_env.py"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def learn(redis_server: RedisServer, stack: ExitStack) -> Callable[..., LearnerSide]:
    return lambda *arguments, **settings: stack.enter_context(
        closing(LearnerSide(redis_server.url, *arguments, **settings))
    )


@pytest.fixture
def connect(redis_server: RedisServer, stack: ExitStack) -> Callable[..., ClientActor]:
    return lambda timeout=20.0: stack.enter_context(client.connect(redis_server.url, RUN, timeout, trust=TRUST))


def play(actor: ClientActor, first: int, steps: int, ends: str = "truncated") -> None:
    """An episode that shows the numbers from ``first`` on, at reward 1 a step."""
    for number in range(first, first + steps):
        actor.act([number, 0])
        last = number == first + steps - 1
        actor.observe(1.0, last and ends == "terminated", last and ends == "truncated", [number + 1, 0])


def test_what_a_client_did_is_in_the_learners_replay(learn: Any, connect: Any) -> None:
    learner = learn()
    actor = connect()
    learner.publish(3)
    play(actor, 0, 5)
    play(actor, 100, 4, "terminated")
    assert actor.weights_version == 3
    assert (actor.slot, actor.connected, actor.finished) == (0, True, False)
    learner.until("all items", lambda: len(learner.replay) == 9)
    assert learner.items() == {
        0: (1.5, 0.25, 2), 1: (1.5, 0.25, 3), 2: (1.5, 0.25, 4), 3: (1.5, 0.25, 5), 4: (1.0, 0.5, 5),
        100: (1.5, 0.25, 102), 101: (1.5, 0.25, 103), 102: (1.5, 0.0, 104), 103: (1.0, 0.0, 104),
    }  # fmt: skip
    learner.until("episodes", lambda: learner.values("episodes"))
    said = learner.values("episodes")
    assert [value for one in said for value in one["returns"]] == [5.0, 4.0]
    assert [value for one in said for value in one["lengths"]] == [5, 4]
    assert learner.totals["env_steps"] == 9


def test_steps_of_a_slow_program_arrive_before_their_chunk_is_full(learn: Any, connect: Any) -> None:
    learner = learn()
    actor = connect()
    learner.publish(1)
    for number in range(4):
        actor.act([number, 0])
        actor.observe(0.0, False, False)
    learner.until("two items", lambda: len(learner.replay) == 2)


def test_several_clients_in_one_process_have_slots_and_epsilons_of_their_own(learn: Any, connect: Any) -> None:
    learner = learn()
    actors = [connect() for _ in range(3)]
    assert [actor.slot for actor in actors] == [0, 1, 2]
    assert len({actor.exploration for actor in actors}) == 3
    with pytest.raises(ExhaustedError, match="3 actor slots and 0 free"):
        connect()
    actors[1].close()
    assert connect().slot == 1
    learner.publish(1)
    players = [threading.Thread(target=play, args=(actors[i], 1000 * i, 200)) for i in (0, 2)]
    for player in players:
        player.start()
    learner.until("all items", lambda: len(learner.replay) == 400)
    for player in players:
        player.join(10)


def test_epsilon_falls_by_the_steps_of_the_whole_run(learn: Any, connect: Any) -> None:
    learner = learn(replace(CONFIG, agent=replace(CONFIG.agent, exploration_steps=100)))
    actor, other = connect(), connect()
    learner.publish(1)
    assert (actor.exploration, other.exploration) == (1.0, 1.0)
    play(actor, 0, 40)
    learner.until("the other hears of it", lambda: other.exploration < 1.0)
    rung = slot_epsilons(1, 3, 1, CONFIG.actor.epsilon, CONFIG.actor.epsilon_alpha)[0]
    learner.until("all", lambda: other.exploration == pytest.approx(0.6 + 0.4 * rung))


def test_newer_weights_come_by_themselves(learn: Any, connect: Any) -> None:
    learner = learn()
    actor = connect()
    for version in (1, 5):
        learner.publish(version)
        learner.until("weights", lambda version=version: actor._carrier.weights.version == version)
        actor.act([0, 0])
        actor.observe(0.0, False, False)
        assert actor.weights_version == version


def test_rounded_weights_arrive_with_the_digits_that_travel(learn: Any, connect: Any) -> None:
    learner = learn(with_hosts(weights_precision="bfloat16"), record={"weights_nbytes": 4096})
    actor = connect()
    matrix = np.random.default_rng(1).normal(size=(16, 32)).astype(np.float32)
    learner.weights.publish({"w": np.array([0.1], np.float32), "matrix": matrix}, 2)
    play(actor, 0, 3)
    assert actor.weights_version == 2
    _, weights = actor._carrier.weights.latest() or (0, {})
    assert weights["w"].tolist() == [np.float32(0.1)]
    np.testing.assert_array_equal(weights["matrix"], lengthened(shortened(matrix)))
    learner.until("all items", lambda: len(learner.replay) == 3)


def test_a_finished_run_is_told(learn: Any, connect: Any) -> None:
    learner = learn()
    actor = connect()
    learner.publish(1)
    play(actor, 0, 3)
    learner.place.finish({})
    while not actor.finished:
        time.sleep(0.02)
    with pytest.raises(ClosedError, match="run test has finished"):
        actor.act([0, 0])


def test_a_run_that_is_stopped_or_replaced_is_told(redis_server: RedisServer, learn: Any, connect: Any) -> None:
    learner = learn()
    actor = connect()
    assert stop_run(Server(redis_server.url), RUN) == "asked"
    learner.until("the news", lambda: actor.finished)
    with pytest.raises(ClosedError, match="run test is being stopped"):
        actor.act([0, 0])
    actor.close()
    learner.close()
    first = learn()
    actor = connect()
    first.close()
    other = learn()
    other.until("the news", lambda: actor.finished)
    with pytest.raises(ClosedError, match="another run has taken the name test"):
        actor.act([0, 0])


@pytest.mark.parametrize("keep_data", [True, False])
def test_a_restarted_server_loses_nothing(stack: ExitStack, tmp_path: Path, keep_data: bool) -> None:
    server = stack.enter_context(RedisServer(tmp_path / "kept", appendonly="yes", appendfsync="always"))
    learner = stack.enter_context(closing(LearnerSide(server.url)))
    actor = stack.enter_context(client.connect(server.url, RUN, trust=TRUST))
    learner.publish(1)
    play(actor, 0, 50)
    learner.until("some items", lambda: len(learner.replay) == 50)
    learner.intake_goes = False
    play(actor, 100, 50)
    server.restart(keep_data)
    play(actor, 200, 50)  # goes on with what it has
    learner.intake_goes = True
    learner._renew_at = 0.0
    learner.until("all items", lambda: len(learner.replay) == 150)
    assert set(learner.items()) == {*range(50), *range(100, 150), *range(200, 250)}
    learner.until("the server is back", lambda: actor.connected)


def test_without_a_server_the_program_goes_on_until_the_window_is_full(
    redis_server: RedisServer, learn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apexrl.roles.uplink._LAST_CHUNKS_SECONDS", 0.2)  # what it waits for at the end never comes
    monkeypatch.setattr("apexrl.roles.uplink._LAST_COMMIT_SECONDS", 0.2)
    learner = learn(with_hosts(window_mb=0.05))
    with client.connect(redis_server.url, RUN, 10.0, trust=TRUST) as actor:
        learner.publish(1)
        play(actor, 0, 20)
        learner.until("items", lambda: len(learner.replay) == 20)
        redis_server.kill()
        while not actor._carrier._trouble:
            time.sleep(0.02)
        actor._timeout = 0.5
        steps = 0
        with pytest.raises(WaitTimeout, match=r"no room for experience within 0\.5 s: Redis at .*The step is kept"):
            for steps in range(1000, 50_000):
                actor.act([steps, 0])
                actor.observe(0.0, False, False)
        assert steps > 1200
        with pytest.raises(WaitTimeout):
            actor.act([0, 0])


def test_drop_oldest_never_holds_the_program_up(redis_server: RedisServer, learn: Any, connect: Any) -> None:
    learner = learn(with_hosts(window_mb=0.05, when_full="drop-oldest"))
    actor = connect()
    learner.publish(1)
    play(actor, 0, 20)
    learner.until("items", lambda: len(learner.replay) == 20)
    learner.intake_goes = False
    for first in range(1000, 9000, 100):
        play(actor, first, 100)
    learner.intake_goes = True
    play(actor, 9000, 10)
    # What came after a gap tells how many are missing there: the last episode was not dropped.
    learner.until("the books", lambda: sum(books(learner)) == 20 + 8000 + 10)
    assert len(learner.replay) == books(learner)[0]
    assert books(learner)[1] > 0


def books(learner: LearnerSide) -> tuple[int, int]:
    """Items committed, and missing."""
    said = learner.values("intake")[-1]
    return said["committed"], said["missing"]


def test_no_learner_no_weights_and_nobody_there(redis_server: RedisServer, learn: Any, connect: Any) -> None:
    with pytest.raises(WaitTimeout, match=r"run test at .* was not there within 0 s: nobody has started it"):
        connect(0.0)
    learn().turn()  # it is ready to take experience
    with pytest.raises(WaitTimeout, match=r"no weights came within 0\.2 s: the learner of run test is alive"):
        connect(0.2).act([0, 0])
    redis_server.kill()
    with pytest.raises(LinkError, match="connection refused"):
        connect()


def test_a_record_that_does_not_fit_is_refused(learn: Any, connect: Any) -> None:
    learn(record={"schema": "00" * 8, "apexrl": "9.9"}).close()
    with pytest.raises(ConfigError, match=r"was started by apexrl 9\.9, which stores steps in another format"):
        connect()
    for name, value in {
        "local": {"fields": {"q": {"shape": "no", "dtype": 3}}},
        "spec": {"observation": [1]},
        "config": "[actor]\nno_such = 1\n",
        "weights_nbytes": 2**61,
    }.items():
        learn(record={name: value}).close()
        with pytest.raises(ConfigError, match="record of run test"):
            connect()


def test_an_agent_that_cannot_be_made_here_takes_no_slot(learn: Any, connect: Any) -> None:
    learner = learn(replace(CONFIG, agent=replace(CONFIG.agent, agent="counting_agent:Nobody")))
    with pytest.raises(ConfigError, match="module counting_agent has no class 'Nobody'"):
        connect()
    assert learner.place._connection.command("HLEN", learner.place.keys.slots) == 0


def test_an_agent_that_nobody_trusts_is_not_made_and_takes_no_slot(redis_server: RedisServer, learn: Any) -> None:
    learner = learn()
    for trust in ((), ("counting",), ("counting_agent.more",)):
        with pytest.raises(ConfigError, match="names 'counting_agent:CountingAgent' as its agent"):
            client.connect(redis_server.url, RUN, 1.0, trust=trust)
    assert learner.place._connection.command("HLEN", learner.place.keys.slots) == 0


def test_a_box_of_the_run_is_what_act_returns(learn: Any, connect: Any) -> None:
    learner = learn(spec=replace(SPEC, action=ActionSpec((2,), "float32")))
    actor = connect()
    learner.publish(1)
    assert actor.act([0, 0]).tolist() == [1.0, 1.0]


PROGRAM = """
import os, signal, sys
from apexrl import client
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start what is in the background without
actor = client.connect(os.environ["URL"], "test", trust=["counting_agent"])
print("connected", flush=True)
for number in range(30):
    actor.act([number, 0])
    actor.observe(1.0, False, number == 29, [number + 1, 0])
{}
"""


def run(redis_server: RedisServer, ending: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-W", "ignore:This process:DeprecationWarning", "-c", PROGRAM.format(ending)],
        env={**os.environ, "URL": redis_server.url, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("ending", "code"),
    [("", 0), ("actor.close()", 0), ("raise SystemExit(3)", 3), ("del actor", 0)],
)
def test_a_program_that_ends_hands_over_what_it_has(
    redis_server: RedisServer, learn: Any, ending: str, code: int
) -> None:
    learner = learn()
    learner.publish(1)
    program = run(redis_server, ending)
    learner.until("its end", lambda: program.poll() is not None)
    assert program.communicate(timeout=10)[1] == ""
    assert program.returncode == code
    assert len(learner.replay) == 30
    free = learner.place._connection.command("HLEN", learner.place.keys.slots)
    assert free == 0  # its slot was given back


def test_a_fork_that_ends_takes_nothing_with_it(redis_server: RedisServer, learn: Any) -> None:
    learner = learn()
    learner.publish(1)
    program = run(
        redis_server, "child = os.fork()\nif child: print(os.waitpid(child, 0)[1], actor.act([0, 0]), flush=True)"
    )
    learner.until("its end", lambda: program.poll() is not None)
    said, errors = program.communicate(timeout=10)
    assert said.split() == ["connected", "0", "1"]
    assert "Traceback" not in errors
    assert len(learner.replay) == 30


def test_ctrl_c_ends_a_program_that_waits(redis_server: RedisServer, learn: Any) -> None:
    learner = learn()
    program = run(redis_server, "print()")  # it waits for the first weights
    keys = learner.place.keys
    assert program.stdout is not None
    assert program.stdout.readline() == "connected\n"
    assert learner.place._connection.command("HLEN", keys.slots) == 1
    program.send_signal(signal.SIGINT)
    learner.until("its end", lambda: program.poll() is not None)
    assert "KeyboardInterrupt" in program.communicate(timeout=10)[1]
    assert learner.place._connection.command("HLEN", keys.slots) == 0


def test_a_link_that_fails_is_told(learn: Any, connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learn()
    actor = connect()
    learner.publish(1)
    actor.act([0, 0])
    monkeypatch.setattr(Uplink, "step", lambda self: 1 / 0)
    while actor._carrier._failed is None:
        time.sleep(0.01)
    with pytest.raises(ApexrlError, match="link to run test failed: division by zero") as caught:
        actor.observe(0.0, False, False)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.long
def test_the_example_plays_for_a_learner(redis_server: RedisServer, tmp_path: Path) -> None:
    environment = {**os.environ, "APEXRL_REDIS_URL": redis_server.url, "OMP_NUM_THREADS": "1"}
    short = ["--env-steps", "3000", "--min-size", "200", "--eval-episodes", "1", "--eval-period-seconds", "100"]
    learner = subprocess.Popen(
        [sys.executable, "-m", "apexrl.cli", "learner", "cartpole", "--run", RUN, "--out", str(tmp_path), *short],
        env=environment,
    )
    try:
        example = [sys.executable, "-W", "error", str(EXAMPLE), "--run", RUN]
        played = subprocess.run(example, env=environment, capture_output=True, text=True, timeout=400)
        assert played.returncode == 0, played.stderr
        assert played.stderr == ""
        first, last, sums = played.stdout.splitlines()
        assert first.startswith("slot 0, epsilon 0.4")
        assert last == "run test has finished"
        assert int(sums.split()[0]) > 10
        assert learner.wait(240) == 0
    finally:
        learner.kill()
        learner.wait()
    (summary,) = tmp_path.glob("*/summary.json")
    told = json.loads(summary.read_text())
    assert told["env_steps"] >= 3000
    assert told["updates"] > 0
    assert told["hosts"]["committed"] > 2500
    assert told["hosts"]["refused"] == told["hosts"]["missing"] == 0


@pytest.mark.long
def test_a_learner_rounds_what_travels_and_keeps_all_digits_itself(redis_server: RedisServer, tmp_path: Path) -> None:
    environment = {**os.environ, "APEXRL_REDIS_URL": redis_server.url, "OMP_NUM_THREADS": "1"}
    flags = ["--env-steps", "3000", "--min-size", "200", "--eval-episodes", "1", "--eval-period-seconds", "100",
             "--hidden", "64", "--weights-precision", "bfloat16", "--name", RUN]  # fmt: skip
    learner = subprocess.Popen(
        [sys.executable, "-m", "apexrl.cli", "learner", "cartpole", "--run", RUN, "--out", str(tmp_path), *flags],
        env=environment,
    )
    rng, weights = np.random.default_rng(0), dict[str, Any]()
    try:
        with closing(client.connect(redis_server.url, RUN, 400.0)) as actor, suppress(ClosedError):
            while True:
                actor.act(rng.normal(size=4).astype(np.float32))
                actor.observe(1.0, bool(rng.random() < 0.05), False, np.zeros(4, np.float32))
                if actor.weights_version > 10:
                    weights = (actor._carrier.weights.latest() or (0, {}))[1]
        assert learner.wait(240) == 0
    finally:
        learner.kill()
        learner.wait()
    told = json.loads((tmp_path / RUN / "summary.json").read_text())
    assert told["env_steps"] >= 3000
    assert told["updates"] > 0
    assert told["hosts"]["refused"] == told["hosts"]["missing"] == 0
    large = {name for name, array in weights.items() if may_round(name, array)}
    assert large
    assert all(np.array_equal(weights[name], lengthened(shortened(weights[name]))) for name in large)
    kept = load_file(max((tmp_path / RUN / "checkpoints").glob("generation-*.safetensors")))
    digits = [array for array in kept.values() if may_round("", array)]
    assert digits
    assert not any(np.array_equal(array, lengthened(shortened(array))) for array in digits)


def test_importing_it_is_light() -> None:
    code = "import sys, apexrl.client; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert not {"torch", "gymnasium", "redis", "msgspec"} & set(done.stdout.split())
    assert CONFIG.env.env == "not_here:Never-v0"  # no test here could have made that environment
