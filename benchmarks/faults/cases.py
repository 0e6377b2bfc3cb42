"""The faults of ``run.py``: a run, a fault of what is around it, its end, and whether the run goes on."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.faults.kept_alive_run import RUN_FLAGS, Checkpoints, Service, readable, summary, wait
from benchmarks.lib.hosts import Places, Relay

NAME = "run"
BEGIN_SECONDS = 180.0  # from the command to the first checkpoint
CGROUP = Path("/sys/fs/cgroup/memory")


@dataclass
class Outcome:
    """What became of one run."""

    case: str
    detail: str
    seconds: float = 0.0
    starts: int = 1
    kills: int = 0
    lost_runs: int = 0
    lost_checkpoints: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not (self.lost_runs or self.lost_checkpoints or self.hangs or self.left or self.wrong)


class Trial:
    """One run of ``apexrl train`` under observation; ``check`` enters what is not as it should be."""

    def __init__(
        self, outcome: Outcome, folder: Path, *flags: str, topology: str = "apex", out: Path | None = None, **how
    ):
        out = out or folder / "runs"
        self.outcome = outcome
        self.run = out / NAME
        words = ["train", "cartpole", "--topology", topology, "--name", NAME, "--out", str(out), "--resume-or-start"]
        self.service = Service([*words, *RUN_FLAGS, *flags], self.run, folder / "log", **how)
        self.checkpoints = Checkpoints(self.run / "checkpoints")

    def begins(self) -> bool:
        """Wait for the first checkpoint and for steps."""
        ok = wait(lambda: bool(self.checkpoints.best_of_generation) and self.service.steps() > 0, BEGIN_SECONDS)
        return self.check(ok, "hangs", "the run does not begin")

    def goes_on(self, when: str) -> bool:
        return self.check(self.service.goes_on(), "hangs", f"no steps {when}")

    def saves(self, when: str, seconds: float = 60.0) -> bool:
        """Wait for a checkpoint that is newer than the newest one."""
        before = max(self.checkpoints.best_of_generation.items(), default=(0, 0))
        newer = wait(lambda: max(self.checkpoints.best_of_generation.items(), default=(0, 0)) > before, seconds)
        return self.check(newer, "wrong", f"no new checkpoint {when}")

    def ends(self, already: bool = False) -> Outcome:
        """Ctrl-C unless it has ended; then everything must be there, and nobody."""
        ended = already or self.service.interrupt()
        self.check(ended, "hangs", "Ctrl-C does not end it")
        self.outcome.left = self.service.remains()
        self.checkpoints.close()
        self.outcome.lost_checkpoints = self.checkpoints.lost
        self.outcome.starts = self.service.starts
        if not readable(self.run):
            self.outcome.lost_runs = 1
        self.check(bool(summary(self.run)), "wrong", "no summary")
        return self.outcome

    def check(self, ok: bool, kind: str, what: str) -> bool:
        if not ok:
            getattr(self.outcome, kind).append(what)
        return ok


def hung_up(folder: Path, outcome: Outcome, nohup: bool, terminal: bool) -> Outcome:
    """SIGHUP: of a terminal that is closed, or sent. Under nohup the run goes on, else it ends in order."""
    trial = Trial(outcome, folder, nohup=nohup, terminal=terminal, restart=False)
    if not trial.begins():
        return trial.ends()
    if terminal:
        trial.service.hang_up()
    else:
        os.kill(trial.service.pid, signal.SIGHUP)
    if nohup:
        when = "after the terminal was closed" if terminal else "after SIGHUP"
        trial.goes_on(when)
        trial.saves(when)
        return trial.ends()
    ended = wait(lambda: not trial.service.running, 60.0)
    trial.check(ended, "hangs", "it does not end")
    trial.check(summary(trial.run).get("stopped_by") == "interrupted", "wrong", f"summary: {summary(trial.run)}")
    return trial.ends(already=ended)


@contextmanager
def small_disk(at: Path, megabytes: int) -> Iterator[Path]:
    at.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(at)], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", str(at)], check=False)


def disk_full(folder: Path, outcome: Outcome, at_the_end: bool) -> Outcome:
    with small_disk(folder / "disk", 64) as disk:
        trial = Trial(outcome, folder, out=disk)
        if not trial.begins():
            return trial.ends()
        filler = disk / "filler"
        with filler.open("wb") as file, suppress(OSError):
            while True:
                file.write(b"x" * 65536)
                file.flush()
        starts = trial.service.starts
        time.sleep(20.0)
        survives = trial.service.starts == starts and trial.service.running
        trial.check(survives, "wrong", "the run ended on a full disk")
        if at_the_end:  # it ends while the disk is full: its newest checkpoint must be readable
            ended = trial.service.interrupt()
            trial.check(ended, "hangs", "Ctrl-C does not end it on a full disk")
            filler.unlink()
            outcome.left = trial.service.remains()
            trial.checkpoints.close()
            outcome.lost_checkpoints = trial.checkpoints.lost
            outcome.lost_runs = int(not readable(trial.run))
            return outcome
        filler.unlink()
        trial.goes_on("when there is room again")
        trial.saves("when there is room again")
        return trial.ends()


def unmounted(folder: Path, outcome: Outcome) -> Outcome:
    disk, backing = folder / "disk", folder / "backing"
    disk.mkdir()
    backing.mkdir()

    def mount() -> None:
        subprocess.run(["mount", "--bind", str(backing), str(disk)], check=True)

    mount()
    try:
        trial = Trial(outcome, folder, out=disk)
        if not trial.begins():
            return trial.ends()
        starts = trial.service.starts
        subprocess.run(["umount", "-l", str(disk)], check=True)
        time.sleep(20.0)
        survives = trial.service.starts == starts and trial.service.running
        trial.check(survives, "wrong", "the run ended when its folder went away")
        for path in disk.iterdir():  # what was written under the mount point meanwhile
            outcome.detail += f"; wrote {path.name} where the disk had been"
            shutil.rmtree(path, ignore_errors=True)
        mount()
        trial.goes_on("when its folder is back")
        trial.saves("when its folder is back")
        return trial.ends()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False, stderr=subprocess.DEVNULL)


def stopped(folder: Path, outcome: Outcome, topology: str, seconds: float, flags: tuple[str, ...] = ()) -> Outcome:
    """Every role of ``topology``, one after the other, gets SIGSTOP for so long."""
    trial = Trial(outcome, folder, *flags, topology=topology)
    if not trial.begins():
        return trial.ends()
    roles = sorted(set(trial.service.workers().values()))
    outcome.detail += ": " + ", ".join(roles)
    for role in roles:
        pid = next((pid for pid, name in trial.service.workers().items() if name == role), 0)
        if not pid:
            outcome.wrong.append(f"no {role} is there to be stopped")
            continue
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            outcome.kills += 1
            time.sleep(seconds)
            os.kill(pid, signal.SIGCONT)
        trial.goes_on(f"after {role} was stopped for {seconds:g} s")
    return trial.ends()


def two_resumes(folder: Path, outcome: Outcome) -> Outcome:
    trial = Trial(outcome, folder)
    if not trial.begins():
        return trial.ends()
    words = [sys.executable, "-m", "apexrl.cli", "resume", str(trial.run)]
    for attempt in range(3):
        before = {path.name for path in trial.run.iterdir()}
        second = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        refused = second.returncode not in (0, 130) and str(trial.service.pid) in second.stderr
        trial.check(refused, "wrong", f"resume {attempt} was not refused: {second.returncode} {second.stderr[-300:]}")
        trial.check(before >= {path.name for path in trial.run.iterdir()} - {"logs"}, "wrong", "the refused one wrote")
    trial.goes_on("after others were refused")
    trial.service.restart = False
    trial.service._stop_keeping()
    os.kill(trial.service.pid, signal.SIGKILL)  # two at once want to be its successor
    wait(lambda: not trial.service.running, 10.0)
    both = [subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) for _ in range(2)]
    ended = wait(lambda: any(one.poll() is not None for one in both), 90.0)
    trial.check(ended and sum(one.poll() is None for one in both) == 1, "wrong", "not exactly one of two resumes runs")
    trial.saves("of the one successor", 90.0)
    for one in both:
        if one.poll() is None:
            one.send_signal(signal.SIGINT)
    for one in both:
        try:
            one.communicate(timeout=90)
        except subprocess.TimeoutExpired:
            outcome.hangs.append("a resumed run does not end")
            one.kill()
    return trial.ends(already=True)


def memory_group_too_small(folder: Path, outcome: Outcome) -> Outcome:
    """A replay that needs more memory than the group may have is refused with the numbers; a smaller one runs there."""
    group = CGROUP / f"apexrl-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(3 << 30))

        def enter() -> None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

        mark_before = time.monotonic()
        service = Service(
            ["train", "cartpole", "--name", "large", "--out", str(folder), "--capacity", "200000000"],
            folder / "large", folder / "large.log", before=enter, restart=False,
        )  # fmt: skip
        ended = wait(lambda: not service.running, 90.0)
        said = (folder / "large.log").read_text(errors="replace")
        told = (
            ended and service._process is not None and service._process.returncode not in (0, -9) and "memory" in said
        )
        if not told:
            outcome.wrong.append(f"not refused after {time.monotonic() - mark_before:.0f} s: {said[-300:]}")
        service.interrupt()
        outcome.left = service.remains()
        trial = Trial(outcome, folder, before=enter)
        if trial.begins():
            trial.goes_on("in a group of 3 GiB")
        return trial.ends()
    finally:
        for _ in range(50):
            with suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.2)


def killed_at_random(folder: Path, outcome: Outcome, topology: str, seconds: float, seed: int) -> Outcome:
    """SIGKILL to anybody of the run, main process and fork server included, every 0.3 to 5 s."""
    draw = random.Random(seed)
    trial = Trial(outcome, folder, topology=topology)
    if not trial.begins():
        return trial.ends()
    end = time.monotonic() + seconds
    best = trial.service.steps()
    while time.monotonic() < end:
        time.sleep(draw.uniform(0.3, 5.0))
        someone = trial.service.workers()
        if someone:
            pid = draw.choice(sorted(someone))
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                outcome.kills += 1
    trial.goes_on("after the last kill")
    trial.saves("after the last kill", 120.0)
    trial.check(trial.service.steps() > best, "wrong", "no more steps than before the kills")
    return trial.ends()


def learner_replaced(folder: Path, outcome: Outcome) -> Outcome:
    """The learner's host is cut off from Redis; another one takes over from a copy of the folder; the link heals."""
    with Places("loopback", 1, folder, server_options=("--maxmemory-policy", "noeviction")) as places:
        flags = RUN_FLAGS
        with Relay(places.server.address) as link:
            host, port = link.address
            url = places.url().replace(f"{places.server.address[0]}:{places.server.address[1]}", f"{host}:{port}")
            first = places.learner("cartpole", *flags, "--name", "first", url=url)
            places.actor(0, "--actors", "2")
            run = folder / "runs" / "first"
            watched = Checkpoints(run / "checkpoints")
            if not wait(lambda: bool(watched.best_of_generation), BEGIN_SECONDS):
                outcome.hangs.append(f"the run does not begin: {first.said[-300:]}")
                return outcome
            time.sleep(5.0)
            link.blackhole()
            time.sleep(7.0)  # a lease, and some
            second_run = folder / "runs" / "second"
            shutil.copytree(run, second_run, ignore=shutil.ignore_patterns("lock", "logs"))
            at_takeover = dict(watched.best_of_generation)
            second = places.apexrl("resume", str(second_run), "--redis", places.url(), "--run", "test")
            successor = Checkpoints(second_run / "checkpoints")
            if not wait(lambda: max(successor.best_of_generation, default=0) > max(at_takeover), 120.0):
                outcome.lost_runs = 1
                outcome.wrong.append(f"the successor writes no checkpoint: {second.said[-400:]}")
            during = dict(watched.best_of_generation)
            if during != at_takeover:
                outcome.wrong.append(f"the one cut off went on writing: {at_takeover} -> {during}")
            link.restore()
            try:
                first.finish(60.0)
            except TimeoutError as error:
                outcome.hangs.append(str(error)[-200:])
            watched.close()
            if watched.best_of_generation != during:
                outcome.wrong.append(f"the replaced one wrote a checkpoint: {during} -> {watched.best_of_generation}")
            before = max(successor.best_of_generation.items(), default=(0, 0))
            if not wait(lambda: max(successor.best_of_generation.items(), default=(0, 0)) > before, 60.0):
                outcome.hangs.append("the successor writes no more checkpoints")
            second.interrupt()
            try:
                second.finish(90.0)
            except TimeoutError as error:
                outcome.hangs.append(str(error)[-200:])
            successor.close()
            outcome.lost_checkpoints = watched.lost + successor.lost
    return outcome


def redis_out_of_memory(folder: Path, outcome: Outcome) -> Outcome:
    with Places("loopback", 1, folder) as places:
        learner = places.learner("cartpole", *RUN_FLAGS)
        actor = places.actor(0, "--actors", "2")
        run = places.run_folder
        watched = Checkpoints(run / "checkpoints")
        if not wait(lambda: bool(watched.best_of_generation), BEGIN_SECONDS):
            outcome.hangs.append(f"the run does not begin: {learner.said[-300:]}")
            return outcome
        for _ in range(3):
            places.server.ask("CONFIG", "SET", "maxmemory", "1mb")
            time.sleep(15.0)
            places.server.ask("CONFIG", "SET", "maxmemory", "0")
            before = max(watched.best_of_generation.items())
            if not (learner.running and actor.running):
                outcome.lost_runs = 1
                outcome.wrong.append(f"ended: {(actor if learner.running else learner).said[-300:]}")
                break
            if not wait(lambda before=before: max(watched.best_of_generation.items()) > before, 60.0):
                outcome.hangs.append("no checkpoint with memory again")
        learner.interrupt()
        for one in (learner, actor):
            try:
                one.finish(90.0)
            except TimeoutError as error:
                outcome.hangs.append(str(error)[-200:])
        watched.close()
        outcome.lost_checkpoints = watched.lost
        if not summary(run):
            outcome.wrong.append("no summary")
    return outcome
