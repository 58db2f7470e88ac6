"""``python -m devices streamer|queue|forwarder FRONTEND BACKEND``: a device alone, relaying in memory."""

from gevent import monkey

monkey.patch_all()

import argparse  # noqa: E402 - nothing may be imported before the patch
import logging  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402

import gevent  # noqa: E402
from gevent.event import Event  # noqa: E402

from devices.device import HWM, HWM_BYTES, Device  # noqa: E402
from devices.endpoints import Endpoint, parse  # noqa: E402
from devices.forwarder import Forwarder  # noqa: E402
from devices.queue import Queue  # noqa: E402
from devices.streamer import Streamer  # noqa: E402
from devices.switchboard import Switchboard  # noqa: E402

_DEVICES: dict[str, type[Streamer | Queue | Forwarder]] = {
    "streamer": Streamer,
    "queue": Queue,
    "forwarder": Forwarder,
}
_EPILOG = """An end is tcp://HOST:PORT or ipc:///PATH. It binds, also when marked with @; marked with > it
connects (quote it: the shell knows > as well). SIGTERM and SIGINT pass on what is held, then end it."""


def main(arguments: list[str] | None = None) -> int:
    """Run one device until a signal; the exit code: 0 done, 1 could not start (2: wrong usage)."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, format="%(message)s")
    board = Switchboard()
    device = _DEVICES[options.device](
        board, options.frontend, options.backend, hwm=options.hwm, hwm_bytes=options.hwm_bytes
    )
    board.start()
    try:
        return _run(options.device, device)
    finally:
        board.stop()


def _run(name: str, device: Device) -> int:
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        gevent.signal_handler(number, stop.set)
    try:
        device.start()
    except OSError as error:
        _say(f"{name}: {error.strerror or error}")
        return 1
    frontend, backend = device.addresses
    _say(f"{name}: frontend {frontend}, backend {backend}")
    stop.wait()
    device.stop()
    _say(f"{name}: stopped after {device.received} messages")
    return 0


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m devices", description=__doc__, epilog=_EPILOG)
    parser.add_argument("device", choices=_DEVICES)
    parser.add_argument(
        "frontend", metavar="FRONTEND", type=_endpoint, help="where producers, clients or publishers are"
    )
    parser.add_argument("backend", metavar="BACKEND", type=_endpoint, help="where workers or subscribers are")
    parser.add_argument("--hwm", type=_positive, default=HWM, help="messages held at most (%(default)s)")
    parser.add_argument(
        "--hwm-bytes", type=_positive, default=HWM_BYTES, help="bytes held at most (%(default)s)"
    )
    return parser


def _endpoint(text: str) -> Endpoint:
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


if __name__ == "__main__":
    sys.exit(main())
