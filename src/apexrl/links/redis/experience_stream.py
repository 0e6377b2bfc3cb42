"""Experience through a Redis stream: a sender per host, one receiver beside the learner.

The sender keeps every frame until the receiver's side has committed it, and sends again what a server may have lost.
The receiver gives frames out at least once; its caller drops those whose sequence it has committed.

The stream has a *life*: its key ends in a token that ``keys.steps`` names. Whoever makes the stream anew makes a new
token, and a sender appends only to a stream that is there (NOMKSTREAM). So after a server came back empty nothing
reaches the new stream before its sender knows, and sends all again from the oldest on: frames of one member never
overtake one another.
"""

from __future__ import annotations

from apexrl.links.redis.receiver import ExperienceReceiver, Received
from apexrl.links.redis.sender import ExperienceSender
from apexrl.links.redis.stream_names import depth, field_of, sequence_of

__all__ = ["ExperienceReceiver", "ExperienceSender", "Received", "depth", "field_of", "sequence_of"]
