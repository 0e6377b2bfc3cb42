"""What ``apexrl doctor`` says: the likeliest causes of bad learning in a run's folder.

Each module of ``causes`` knows the causes of one concern: functions of a run's record that return the cause, with its
evidence, or None.
"""

from __future__ import annotations

from apexrl.report.diagnosis.causes import CAUSES
from apexrl.report.diagnosis.finding import LISTED, Cause
from apexrl.report.diagnosis.recorded_run import RunRecord

MOST = 3


def diagnose(record: RunRecord) -> list[Cause]:
    """The likeliest causes, at most three, the likeliest first. None: nothing looks wrong.

    What looks wrong in a run whose returns rose is less likely to be the cause of anything.
    """
    doubt = 1.0 - 0.4 * record.learned
    found = [cause for find in CAUSES if (cause := find(record)) is not None]
    found = [cause._replace(confidence=round(cause.confidence * doubt, 2)) for cause in found]
    found = [cause for cause in found if cause.confidence >= LISTED]
    return sorted(found, key=lambda cause: -cause.confidence)[:MOST]
