"""A plain PUSH producer that never pauses: flood.py ADDRESS BYTES [COUNT]. Says ``sent`` after COUNT."""

import itertools
import sys

import zmq


def main(address: str, size: str, count: str = "0") -> None:
    numbers = range(int(count)) if int(count) else itertools.count()
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.connect(address)
        for number in numbers:
            socket.send(b"%d" % number + b"." * int(size))
    sys.stdout.write("sent\n")


main(*sys.argv[1:])
