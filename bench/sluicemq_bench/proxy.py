"""``python -m sluicemq_bench.proxy streamer|forwarder|queue [KEY_FILE]``: libzmq's proxy, for comparison.

With a key file it speaks CURVE, and lets everybody in.
"""

from __future__ import annotations

import sys

import zmq

from sluicemq.protocol.keys import encode, read_key_file

_KINDS = {
    "streamer": (zmq.PULL, zmq.PUSH),
    "forwarder": (zmq.XSUB, zmq.XPUB),
    "queue": (zmq.ROUTER, zmq.DEALER),
}
_HWM = 10_000  # like a device alone


def main(device: str, key_file: str = "") -> None:
    """Print the addresses, as a device does, and relay until a signal."""
    context = zmq.Context()
    ends = [context.socket(kind) for kind in _KINDS[device]]
    for end in ends:
        end.set_hwm(_HWM)
        if key_file:
            end.curve_server = True
            end.curve_secretkey = encode(read_key_file(key_file).secret).encode()
        end.bind("tcp://127.0.0.1:*")
    frontend, backend = (end.get_string(zmq.LAST_ENDPOINT) for end in ends)
    sys.stderr.write(f"{device}: frontend {frontend}, backend {backend}\n")
    sys.stderr.flush()
    zmq.proxy(*ends)


if __name__ == "__main__":
    main(*sys.argv[1:])
