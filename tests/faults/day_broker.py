"""A broker whose day is short: ``python tests/faults/day_broker.py ...`` as ``python -m sluicemq_broker``.

``DAY_BEGAN`` is where the day begins, in Unix seconds; ``DAY_FROM`` when it began by this machine's monotonic
clock; ``DAY_SPEED`` how many of its seconds pass in one. Only the time that jobs, history and incidents have
is fast; leases and polls are not. So queues are counted again after a fifth of a second or two, whether
anything happens or not, and a job waits for long only after 15 minutes.
"""

import os
import sys
import time

if __name__ == "__main__":
    from gevent import monkey

    monkey.patch_all()

    from sluicemq_broker.command import main
    from sluicemq_broker.history import Incidents, incidents
    from sluicemq_broker.queues import census
    from sluicemq_broker.store import ServerClock

    _SPEED, _BEGAN, _FROM = (float(os.environ[f"DAY_{name}"]) for name in ("SPEED", "BEGAN", "FROM"))

    def _now(_clock: object) -> float:
        return int((_BEGAN + (time.monotonic() - _FROM) * _SPEED) * 1000) / 1000

    _returned = Incidents.store_returned

    def _store_returned(self: Incidents, seconds: float) -> None:
        _returned(self, seconds * _SPEED)

    ServerClock.now = _now  # type: ignore[assignment, method-assign]
    Incidents.store_returned = _store_returned  # type: ignore[method-assign]
    vars(census).update(_CHANGED_AGE=0.2, _RESTING_AGE=2.0)
    vars(incidents).update(LONG=900.0)
    sys.exit(main(sys.argv[1:]))
