"""``sluicemq device streamer|queue|forwarder FRONTEND BACKEND``: one device alone, relaying in memory."""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # the current folder may hold a zmq.py or a gevent/ of the user

from sluicemq_devices.descriptors import take_closed_numbers

take_closed_numbers()

from gevent import events, monkey  # noqa: E402 - it opens files

# There are no plugins of gevent; to look for them in all that is installed takes 0.1 s of each start.
events.notify_and_call_entry_points = events.notify
monkey.patch_all()

import argparse  # noqa: E402 - nothing may be imported before the patch
import json  # noqa: E402
import logging  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
from collections.abc import Callable, Mapping  # noqa: E402
from pathlib import Path  # noqa: E402

import gevent  # noqa: E402
from gevent.event import Event  # noqa: E402

from sluicemq.protocol.errors import UnavailableError  # noqa: E402
from sluicemq.protocol.keys import KeyPair, read_key, read_key_file  # noqa: E402
from sluicemq.standard_streams import guarded  # noqa: E402
from sluicemq_devices.hub import (  # noqa: E402
    Notices,
    OneLine,
    give_back_large_memory,
    look_for_cycles,
    unblock_stderr,
)
from sluicemq_devices.relays import HWM, HWM_BYTES, Device, Forwarder, Kind, QueueDevice, Streamer  # noqa: E402
from sluicemq_devices.sockets import (  # noqa: E402
    OPEN,
    AllowList,
    Dialling,
    Endpoint,
    Guard,
    Outgoing,
    Switchboard,
    parse_endpoint,
)

_DEVICES: dict[str, Callable[..., Device]] = {
    Kind.STREAMER: Streamer,
    Kind.QUEUE: QueueDevice,
    Kind.FORWARDER: Forwarder,
}
#: New objects among which Python looks for cycles at once (1 ms), and new blocks of memory after which it
#: looks at all and never again at those that stay (6 ms). Topics are such objects, messages are not.
_NEW_OBJECTS, _NEW_BLOCKS = 2_000, 20_000
_EPILOG = """An end is tcp://HOST:PORT or ipc:///PATH. It binds, also when marked with @; marked with > it
connects (quote it: the shell knows > as well). SIGTERM and SIGINT pass on what is held, then end it."""


def main(
    arguments: list[str] | None = None, *, devices: Mapping[str, Callable[..., Device]] = _DEVICES
) -> int:
    """Run one device until a signal; return the exit code: 0 done, 1 could not start, 2 wrong usage.

    ``devices``: the class of each kind of device.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    allow, guards = _guards(parser, options)
    _set_up_log()
    notices = Notices(logging.getLogger("devices"))
    board = Switchboard(notice=notices.notice, count=notices.add, outgoing=Outgoing(2 * options.hwm_bytes))
    try:
        device = devices[options.device](
            board,
            options.frontend,
            options.backend,
            hwm=options.hwm,
            hwm_bytes=options.hwm_bytes,
            guard=guards.__getitem__,
        )
    except UnavailableError as error:
        _say(f"{options.device}: {error}")
        return 1
    if allow:
        gevent.signal_handler(signal.SIGHUP, _read_again, allow, board)
    board.start()
    try:
        return _run(options.device, device, notices, as_json=options.json)
    finally:
        board.stop()


def _guards(
    parser: argparse.ArgumentParser, options: argparse.Namespace
) -> tuple[AllowList | None, dict[Endpoint, Guard]]:
    """Return the list of keys that get in, if there is one, and the guard of each end.

    Ends with wrong usage if an end is open to other machines, or connects without a key although others have
    one.
    """
    keys, server = options.curve_secret_key_file, options.server_key
    if (options.allow is None) != (keys is None) and not (keys and server):
        parser.error("--curve-secret-key-file and --allow belong together: without them no key is asked for")
    try:
        allow = AllowList(keys, options.allow) if options.allow else None
    except ValueError as error:
        parser.error(str(error))
    dialled = Dialling(server, keys) if server else OPEN
    ends = (options.frontend, options.backend)
    guards = {end: (allow or OPEN) if end.bind else dialled for end in ends}
    if not options.insecure:
        _refuse_open(parser, [end for end in ends if guards[end] is OPEN], has_keys=bool(allow or server))
    return allow, guards


def _refuse_open(parser: argparse.ArgumentParser, ends: list[Endpoint], *, has_keys: bool) -> None:
    """End with wrong usage if one of these ends, which have no key, must have one."""
    exposed = [end.address for end in ends if end.is_exposed]
    if exposed:
        parser.error(
            f"other machines can reach {' and '.join(exposed)}, and clients need no key there: listen on "
            "127.0.0.1, ask for keys with --curve-secret-key-file and --allow, or say that this network may "
            "read and send everything: --insecure"
        )
    dialled = [end.address for end in ends if has_keys and not end.bind]
    if dialled:
        parser.error(
            f"{' and '.join(dialled)} would be connected to without a key: give --server-key, or say that it "
            "is meant: --insecure"
        )


def _read_again(allow: AllowList, board: Switchboard) -> None:
    """Read the keys that get in again, and cut the connections of keys that are gone."""
    try:
        allow.read_again()
    except ValueError as error:
        _say(f"{error}; the keys that were read before still get in")
        return
    board.cut_if(allow.is_over, "its key is not allowed any more")


def _set_up_log() -> None:
    unblock_stderr()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine("%(message)s"))
    logging.basicConfig(handlers=[handler])


def _run(name: str, device: Device, notices: Notices, *, as_json: bool) -> int:
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        gevent.signal_handler(number, stop.set)
    try:
        device.start()
    except OSError as error:
        _say(f"{name}: {error.strerror or error}")
        return 1
    look_for_cycles(_NEW_OBJECTS, _NEW_BLOCKS)
    give_back_large_memory()
    frontend, backend = device.addresses
    _say(f"{name}: frontend {frontend}, backend {backend}")
    if as_json:
        report = {"pid": os.getpid(), "kind": name, "frontend": frontend, "backend": backend}
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()
    stop.wait()
    device.stop()
    notices.say_rest()
    counted = "".join(f", {kind} {count}" for kind, count in sorted(notices.values.items()))
    _say(f"{name}: stopped after {device.received} messages{counted}")
    return 0


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sluicemq device", description=__doc__, epilog=_EPILOG)
    parser.add_argument("device", choices=[str(kind) for kind in _DEVICES])
    parser.add_argument(
        "frontend", metavar="FRONTEND", type=_endpoint, help="where producers, clients or publishers are"
    )
    parser.add_argument("backend", metavar="BACKEND", type=_endpoint, help="where workers or subscribers are")
    parser.add_argument("--hwm", type=_positive, default=HWM, help="messages held at most (%(default)s)")
    parser.add_argument(
        "--hwm-bytes", type=_positive, default=HWM_BYTES, help="bytes held at most (%(default)s)"
    )
    parser.add_argument(
        "--curve-secret-key-file",
        metavar="FILE",
        type=_key_file,
        help="key file of this device: ends that bind speak CURVE, and let in the keys of --allow",
    )
    parser.add_argument(
        "--allow",
        metavar="FILE",
        type=Path,
        help="public keys that get in, one in a line with a name behind it; SIGHUP reads it again",
    )
    parser.add_argument(
        "--server-key",
        metavar="KEY",
        type=_key,
        help="public key of the server to which an end connects: it speaks CURVE",
    )
    parser.add_argument(
        "--insecure", action="store_true", help="other machines may reach its doors although they need no key"
    )
    parser.add_argument(
        "--json", action="store_true", help="print pid and ends as one JSON object when ready"
    )
    return parser


def _endpoint(text: str) -> Endpoint:
    try:
        return parse_endpoint(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _key_file(text: str) -> KeyPair:
    try:
        return read_key_file(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _key(text: str) -> bytes:
    try:
        return read_key(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not {error}") from error


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


if __name__ == "__main__":
    with guarded():
        sys.exit(main())
