"""Every error that apexrl raises on purpose.

    ApexrlError
    ├── ClosedError        a replay, writer or board was used after close()
    ├── WaitTimeout        a wait ran past its timeout (also a TimeoutError)
    ├── SpecError          wrong names, shapes or dtypes (also a ValueError)
    ├── PriorityError      a NaN, infinite or negative priority (also a ValueError)
    ├── OwnershipError     a second sampler while the owner lives
    │   ├── HeldError      a second process for a run that another one trains
    │   └── FencedError    a newer generation writes this run's checkpoints
    ├── ExhaustedError     no free writer lane or stream is left
    ├── SnapshotError      a file is truncated, corrupt, of another version, or cannot be written
    ├── DatasetError       a dataset is missing, broken, or of another environment (also a ValueError)
    ├── ConfigError        an unknown or contradictory setting (also a ValueError)
    ├── EnvError           an environment cannot be made, fails or hangs
    ├── AgentError         an agent cannot do what was asked of it
    ├── NonFiniteError     NaN or infinity in a loss or in weights
    ├── LinkError          a server cannot be reached, refuses access or is not suitable
    ├── FrameError         bytes from the network are not a frame of this run (also a ValueError)
    ├── CallbackError      a callback raised an error
    └── WorkerError        a role failed more often than its restart limit allows

A message says what was wrong, where, and what to do.
"""

from __future__ import annotations


class ApexrlError(Exception):
    """Base of every error that apexrl raises on purpose."""


class ClosedError(ApexrlError):
    """A replay, writer or board was used after ``close()``."""


class WaitTimeout(ApexrlError, TimeoutError):
    """A wait ran past its timeout; nothing was lost and the call may be repeated."""


class SpecError(ApexrlError, ValueError):
    """Names, shapes or dtypes do not match what was declared."""


class PriorityError(ApexrlError, ValueError):
    """A priority is NaN, infinite or negative; the message names its row."""


class OwnershipError(ApexrlError):
    """Another living process owns the replay."""


class HeldError(OwnershipError):
    """Another process trains this run; the message names it. Nothing was changed."""


class FencedError(OwnershipError):
    """A newer generation of this role, or of this run, writes into the run folder. Nothing was written."""


class ExhaustedError(ApexrlError):
    """No free writer lane or stream is left; raise ``writers=`` or ``streams=``."""


class SnapshotError(ApexrlError):
    """A stored file is truncated, corrupt or of another version, or cannot be written."""


class DatasetError(ApexrlError, ValueError):
    """A dataset is missing, cannot be read or written, or does not fit the environment; the message names the place."""


class ConfigError(ApexrlError, ValueError):
    """A setting is unknown, out of range or contradicts another."""


class EnvError(ApexrlError):
    """An environment cannot be made, raised an error, or hung."""


class AgentError(ApexrlError):
    """An agent cannot do what was asked of it."""


class NonFiniteError(ApexrlError):
    """A loss, a gradient or weights hold NaN or infinity."""


class LinkError(ApexrlError):
    """A server cannot be reached, refuses access or is not suitable; the message names it, without the password."""


class FrameError(ApexrlError, ValueError):
    """Bytes from the network are not a frame of this run; none of them were used."""


class CallbackError(ApexrlError):
    """A callback raised an error, which is this one's cause; the run was stopped after a checkpoint."""


class WorkerError(ApexrlError):
    """A role failed more often than its restart limit allows."""


def said_by(error: BaseException) -> str:
    """The text of any error, also of one that cannot tell it."""
    try:
        return str(error)
    except Exception as another:
        return f"its text cannot be told ({type(another).__name__})"
