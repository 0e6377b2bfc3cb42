"""The intake role, on the learner's host: receives what other hosts send, and sends them the weights."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from apexrl.config import Config, HostsConfig
from apexrl.errors import FrameError, LinkError, OwnershipError
from apexrl.protocols import Context
from apexrl.roles.host_messages import HostMessages
from apexrl.roles.role_traits import RoleTraits
from apexrl.roles.uplink import COUNTED, GENERATIONS
from apexrl.run.status import Work

if TYPE_CHECKING:
    from apexrl.links.local.sharded_parameters import ShardedParameters
    from apexrl.links.redis.experience_stream import Received
    from apexrl.links.redis.keys import RunKeys
    from apexrl.links.redis.server import Server
    from apexrl.replay import Replay
    from apexrl.replay.chunks import Receipts
    from apexrl.shared.weights_board import WeightsBoard


_REPORT_SECONDS = 1.0
_PATIENCE_SECONDS = 0.1
_IDLE_SECONDS = 60.0  # after which a stream of a host is thought to have ended
_LOOK_SECONDS = 2.0  # between looks whether the server still has the weights
_HELD_SECONDS = 0.1  # until weights are offered again that have to wait for readers of older ones


class Intake:
    """Commits chunks of other hosts to the learner's replay, through a lane like any actor's: the learner does not know
    who is remote. Where every learner has a replay of its own, chunks are dealt to them (``ChunkDealer``).

    A frame is acknowledged once it is committed. What was committed stands in ``receipts``, in shared memory, so that a
    successor of a killed intake takes nothing twice.

    Args:
        replays: of all learners that have one.
        weights: what other hosts are sent.
        streams: the most environments of all other hosts together.
        fence: of the learner's lease; once another learner has a newer one, this intake changes nothing.
    """

    traits = RoleTraits("intake", Work("chunks", "chunks/s", "carrying"), grace_seconds=20.0)

    def __init__(
        self,
        context: Context,
        *,
        config: Config,
        server: Server,
        keys: RunKeys,
        run_id: str,
        replays: Sequence[Replay],
        weights: WeightsBoard | ShardedParameters,
        receipts: Receipts,
        streams: int,
        fence: int = 0,
    ) -> None:
        from apexrl.links.redis.experience_stream import ExperienceReceiver
        from apexrl.links.redis.members import MessageReader
        from apexrl.replay.chunk_dealer import ChunkDealer

        self._context = context
        self._receipts = receipts
        self._sink = ChunkDealer(replays, receipts, streams)
        self._sink.open()
        self._receiver = ExperienceReceiver(server, keys, run_id=run_id, schema=self._sink.schema, fence=fence)
        self._met = False  # the server has told what it knows of senders
        self._uncounted: list[tuple[str, list[int], bool]] = []  # host, its totals, whether nothing came before
        self._messages = MessageReader(server, keys)
        self._hosts = HostMessages(context)
        self._queue: deque[Delivery] = deque()
        self._refused = self._refused_items = 0
        self._next_report = 0.0
        self._trouble = self._weights_trouble = ""
        self._lost = 0, 0  # messages of hosts, publications of weights
        self._weights = UploadThread(server, keys, run_id, weights, config.hosts, fence)
        self._replaced = False

    def step(self) -> bool:
        """Commit and acknowledge what has come. False: nothing came, or the replay takes no more just now."""
        if self._replaced:
            return False
        try:
            return self._carry()
        except OwnershipError as error:  # the supervisor hears of it too, and ends the run
            self._replaced = True
            self._context.send("log", text=str(error), level="warning")
            return False

    def _carry(self) -> bool:
        self._weights.check()
        if not self._met and not self._meet():
            return False
        self._report()
        if not self._queue:
            received = self._receiver.receive(min(self._context.patience, _PATIENCE_SECONDS))
            self._queue.extend(Delivery(one) for one in received)
        self._count_told()
        if not self._queue:
            return False
        done: list[Received] = []
        committed: dict[tuple[str, int], int] = {}
        full = False
        while self._queue and not full:
            delivery = self._queue[0]
            full = not self._commit(delivery)
            sender = delivery.received.member, delivery.received.generation
            reached = self._receipts.read(delivery.sender).sequence
            if not full:
                done.append(self._queue.popleft().received)
                if delivery.received.sequence <= reached:  # what was refused, in its turn, is done with too
                    reached = max(reached, delivery.end)
            committed[sender] = reached
        self._receiver.acknowledge(done, committed)
        self._receiver.hold_back(full)
        return bool(done)

    def _meet(self) -> bool:
        """Take over what the server remembers of senders, before anything of theirs. False: it cannot be asked now."""
        try:
            known = self._receiver.known()
        except LinkError:
            time.sleep(min(self._context.patience, _PATIENCE_SECONDS))
            return False
        self._receipts.restore({f"{member}/{generation}": sequence for (member, generation), sequence in known.items()})
        self._met = True
        return True

    def close(self) -> None:
        """Hand over what is there; what was not committed stays on the server for a successor."""
        if not self._replaced:
            with suppress(OwnershipError):
                self._report(last=True)
                self._receiver.close()
                self._count_told()
        self._messages.close()
        self._weights.close()
        self._sink.close()

    def _commit(self, delivery: Delivery) -> bool:
        """Commit a frame's chunks from where it stands. False: the replay took no more."""
        received = delivery.received
        try:
            while delivery.done < len(received.heads):
                done = self._sink.commit_frame(
                    delivery.sender,
                    received.sequence,
                    received.item_index,
                    received.heads,
                    received.body,
                    delivery.done,
                    min(self._context.patience, _PATIENCE_SECONDS),
                )
                if done == delivery.done:
                    return False
                delivery.done = done
        except FrameError as error:  # the rest of the frame is of the same origin
            self._refused += 1
            self._refused_items += received.heads.items(delivery.done)
            self._context.send("log", text=f"{error} (frame {received.entry.decode()})", level="warning")
            return True
        self._context.count(chunks=delivery.done)
        life, uplink = divmod(received.generation, GENERATIONS)
        totals = [received.counts.get(name, 0) for name in COUNTED]
        first = received.sequence == uplink == 0
        self._uncounted.append((f"{received.member}/{life}", totals, first))
        return True

    def _count_told(self) -> None:
        """Count the steps of committed frames, once the server knows of them. Before that, the frames may come again,
        to the intake of another learner: it cannot know that this one has counted them."""
        if not self._receiver.all_told:
            return
        for host, totals, first in self._uncounted:
            grown = self._receipts.count(host, totals, first)
            self._context.count(**dict(zip(COUNTED, grown, strict=True)))
        self._uncounted.clear()

    def _report(self, last: bool = False) -> None:
        """Once a second: messages of hosts, what was refused, and counters."""
        now = self._context.clock()
        if now < self._next_report and not last:
            return
        self._next_report = now + _REPORT_SECONDS
        with suppress(LinkError):  # the receiver waits for the server
            self._hosts.pass_on(self._messages.read())
            self._count_totals()
        self._sink.close_idle(_IDLE_SECONDS)
        for text in self._receiver.take_refusals():
            self._context.send("log", text=text, level="warning")
        if self._receiver.trouble != self._trouble:
            self._trouble = self._receiver.trouble
            text = f"experience of other hosts: {self._trouble or 'it arrives again'}"
            self._context.send("log", text=text, level="warning" if self._trouble else "info")
        if self._weights.trouble != self._weights_trouble:
            self._weights_trouble = self._weights.trouble
            words = f"they cannot be published: {self._weights_trouble}; trying again"
            text = f"weights for other hosts: {words if self._weights_trouble else 'they are published again'}"
            self._context.send("log", text=text, level="warning" if self._weights_trouble else "info")
        lost = self._hosts.dropped + self._messages.unreadable, self._weights.failures
        self._context.count(host_messages=lost[0] - self._lost[0], failed_weights=lost[1] - self._lost[1])
        self._lost = lost
        totals = self._receipts.totals()
        self._context.send(
            "intake",
            committed=totals.committed,
            missing=totals.missing,
            repeated=totals.repeated,
            refused=self._refused + self._receiver.refused,
            refused_items=self._refused_items,
            waiting=self._receiver.depth(),
            drained=self._hosts.drained,
            weights_published=self._weights.published,
            weights_trouble=self._weights_trouble,
        )

    def _count_totals(self) -> None:
        """Count what hosts with learners of their own have done: their experience stays with them."""
        for member, totals in self._hosts.totals.items():
            grown = self._receipts.count(f"{member}/own", totals, first=False)
            self._context.count(**dict(zip(COUNTED, grown, strict=True)))
        self._hosts.totals.clear()


class Delivery:
    """A frame on its way into the replay, and how far it is."""

    __slots__ = ("done", "end", "received", "sender")

    def __init__(self, received: Received) -> None:
        self.received = received
        self.sender = f"{received.member}/{received.generation}"
        self.done = 0  # chunks
        self.end = received.sequence + len(received.heads)


class UploadThread:
    """Sends every new version of the weights that it can: the newest only, and not faster than the link takes them.

    Attributes:
        published: the newest version that the server took.
        failures: attempts that it did not take.
        trouble: why it does not take them now, in words; empty when all is well.
    """

    def __init__(
        self,
        server: Server,
        keys: RunKeys,
        run_id: str,
        board: WeightsBoard | ShardedParameters,
        hosts: HostsConfig,
        fence: int,
    ) -> None:
        from apexrl.links.redis.weights_uploader import WeightsUploader

        rounded = hosts.weights_precision == "bfloat16"
        self._uploader = WeightsUploader(
            server, keys, run_id=run_id, fence=fence, compression=hosts.compression, rounded=rounded
        )
        self._board = board
        self._closing = False
        self._error: BaseException | None = None
        self.published = self.failures = 0
        self.trouble = ""
        self._thread = threading.Thread(target=self._run, name="weights", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise here what went wrong in the thread."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self._closing = True
        self._thread.join(timeout=5.0)

    def _pause(self, seconds: float) -> None:
        time.sleep(min(seconds, _LOOK_SECONDS))

    def _run(self) -> None:
        from apexrl.links.backoff import Backoff

        backoff = Backoff()
        look_at = 0.0
        try:
            while not self._closing:
                sent = self.published
                newest = self._board.latest(newer_than=sent) if self._board.wait(sent, timeout=0.25) else None
                began = time.monotonic()
                try:
                    if newest is not None and not self._uploader.publish(newest[1], newest[0]):
                        self._pause(_HELD_SECONDS)
                    elif newest is not None:
                        self.published, look_at = newest[0], began + _LOOK_SECONDS
                        self._pause(time.monotonic() - began)  # half of the link is the experience's
                    elif sent and began >= look_at:
                        self.published = min(sent, self._uploader.published())  # less: a server came back without them
                        look_at = began + _LOOK_SECONDS
                    backoff.reset()
                    self.trouble = ""
                except (LinkError, FrameError) as error:
                    self.failures += newest is not None
                    self.trouble = str(error)
                    self._pause(backoff.next())
        except OwnershipError:
            pass  # the intake hears of it too
        except BaseException as error:
            self._error = error
        finally:
            self._uploader.close()
