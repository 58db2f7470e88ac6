"""``python -m sluicemq_broker``, which ``sluicemq serve`` runs."""

import os
import signal
import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # the current folder: a zmq.py or a gevent/ there must not be imported

#: Flags whose values may be, or contain, a secret; and what stands in their place.
_SECRET, _HIDDEN = ("--mongodb-uri", "--http-token", "--event-bus"), "***"


def _out_of_sight(words: list[str]) -> list[str]:
    """Return the command line, which all users can read, without secrets; put them into the environment."""
    shown = list(words)
    for place, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag in _SECRET and equals and value != _HIDDEN:
            os.environ[_variable(flag)], shown[place] = value, f"{flag}={_HIDDEN}"
        elif place and words[place - 1] in _SECRET and word != _HIDDEN:
            os.environ[_variable(words[place - 1])], shown[place] = word, _HIDDEN
    return shown


def _variable(flag: str) -> str:
    return "SLUICEMQ_" + flag.removeprefix("--").replace("-", "_").upper()


if __name__ == "__main__" and (_shown := _out_of_sight(sys.orig_argv)) != sys.orig_argv:
    os.execv(sys.executable, _shown)  # noqa: S606 - this program again, before it has done anything

if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the broker hears it, it must not end it

from sluicemq_devices.descriptors import take_closed_numbers  # noqa: E402 - imports nothing of gevent

take_closed_numbers()

from gevent import events, monkey  # noqa: E402 - not before this program may be run again

# It has no plugins; each of 25 steps would look for them in all that is installed: 0.1 s of each start.
events.notify_and_call_entry_points = events.notify
monkey.patch_all()

from sluicemq.standard_streams import guarded  # noqa: E402 - everything after the patch
from sluicemq_broker.command import main  # noqa: E402

if __name__ == "__main__":
    with guarded():
        sys.exit(main(sys.argv[1:]))
