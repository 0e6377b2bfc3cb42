"""Experience over a Redis stream: one sender per host, one receiver on the learner's host.

A sender keeps every frame until the receiver has committed it, and sends it again if the server may have lost it. The
receiver delivers frames at least once; its caller drops those that it has committed.

Every creation of the stream is a *generation*: the stream's key ends in a random token, which ``keys.steps`` names. A
sender appends only to an existing stream (NOMKSTREAM). So after a server restarted empty, a sender notices the new
generation before it appends, and sends all uncommitted frames from the oldest on: frames of one member stay in order.
"""

from __future__ import annotations

from apexrl.links.redis.receiver import ExperienceReceiver, Received
from apexrl.links.redis.sender import ExperienceSender
from apexrl.links.redis.stream_names import depth, field_of, sequence_of

__all__ = ["ExperienceReceiver", "ExperienceSender", "Received", "depth", "field_of", "sequence_of"]
