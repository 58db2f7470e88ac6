"""Orders on their way through several queues: a chain, with a choice in it, and a fan-out.

Each stage is a worker of a queue of its own. It returns where the order goes on, and may run anywhere, in any
number::

    orders ── checked ──▶ payments ── paid ──▶ parcels ──▶ "sent 3 cups"
                              └── refused ───▶ reminders ──▶ "reminded of 3 cups"

    lists ──▶ a child in orders for each line; done when all are ──▶ "all 2 are seen to"

Run every stage here with ``python pipelines.py work``, and order with ``python pipelines.py order 3 cups``,
or several things at once with ``python pipelines.py list "3 cups" "1 pot"``.
"""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from typing import Any

from sluicemq import FanOut, Forward, Handler, Job, Producer, Reject, SluiceError, Worker


def check(job: Job) -> Forward:
    """Check an order: the first stage. A wrong one goes no further."""
    order = job.json()
    if order["count"] < 1:
        raise Reject(f"an order needs a count of 1 or more, not {order['count']}")
    return Forward("payments", json.dumps({**order, "price": 5 * order["count"]}).encode())


def pay(job: Job) -> Forward:
    """Choose the way: orders beyond the purse get a reminder later; among the others small ones go first."""
    order = job.json()
    if order["price"] > order["purse"]:
        return Forward("reminders", delay=order.get("patience", 3600))
    return Forward("parcels", priority=max(0, 100 - order["count"]))


def send(job: Job) -> bytes:
    """End the chain: the result goes to the client that ordered."""
    order = job.json()
    return f"sent {order['count']} {order['what']}".encode()


def remind(job: Job) -> bytes:
    """End the other way."""
    order = job.json()
    return f"reminded of {order['count']} {order['what']}".encode()


def split(job: Job) -> FanOut:
    """Split a list of orders: each line is an order, and the list is done when all are."""
    orders = job.json()
    children = [Forward("orders", json.dumps(order).encode()) for order in orders]
    return FanOut(*children, result=f"all {len(children)} are seen to".encode())


STAGES: dict[str, Handler] = {
    "lists": split,
    "orders": check,
    "payments": pay,
    "parcels": send,
    "reminders": remind,
}


def ask(endpoint: str | None, queue: str, what: Any, timeout: float = 60.0) -> str:
    """Wait for the result of an order or a list; ends the program if there is none."""
    with Producer(endpoint=endpoint) as producer:
        try:
            return producer.submit_value(queue, what).text(timeout)
        except (SluiceError, TimeoutError) as error:
            raise SystemExit(f"{type(error).__name__}: {error}") from None


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--endpoint", help="of the broker; by default $SLUICEMQ_ENDPOINT, or this machine's")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("work", help="run a worker of every stage")
    ordering = commands.add_parser("order", help="order something, and wait for its result")
    ordering.add_argument("count", type=int)
    ordering.add_argument("what")
    ordering.add_argument("--purse", type=int, default=100)
    ordering.add_argument("--patience", type=float, default=1.0)
    listing = commands.add_parser("list", help="order several things, and wait until all are done")
    listing.add_argument("lines", nargs="+", metavar="'COUNT WHAT'")
    options = parser.parse_args()
    if options.command == "order":
        said = {key: getattr(options, key) for key in ("count", "what", "purse", "patience")}
        print(ask(options.endpoint, "orders", said))
        return
    if options.command == "list":
        pairs = [line.split(maxsplit=1) for line in options.lines]
        common = {"purse": 100, "patience": 1.0}
        orders = [{"count": int(count), "what": what, **common} for count, what in pairs]
        print(ask(options.endpoint, "lists", orders))
        return
    with ExitStack() as stages:
        *others, (queue, handler) = STAGES.items()
        for name, stage in others:
            stages.enter_context(Worker(name, stage, prefetch=10, endpoint=options.endpoint))
        Worker(queue, handler, prefetch=10, endpoint=options.endpoint).run()


if __name__ == "__main__":
    main()
