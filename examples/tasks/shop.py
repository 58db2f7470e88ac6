"""A shop whose work is tasks: README.md tells how to run it.

``sluicemq work shop:app`` runs the tasks; ``python shop.py order cups=3 pots=1`` orders something.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from datetime import UTC, datetime

from sluicemq import PREVIOUS, App, DeadError, Job, Reject, chain, group

PRICES = {"cups": 3, "pots": 20}

app = App("example-shop")


@dataclass
class Order:
    """An order as it travels: the worker gets it as it was pushed."""

    customer: str
    lines: dict[str, int]
    placed: datetime


@app.task(queue="orders")
def price(order: Order) -> int:
    """Return what an order costs."""
    if unknown := order.lines.keys() - PRICES.keys():
        raise Reject(f"there are no {min(unknown)}")  # a dead letter: to try again would not help
    return sum(PRICES[item] * count for item, count in order.lines.items())


@app.task(queue="payments", retries=5, timeout="30s", bind=True)
def charge(job: Job, customer: str, amount: int) -> str:
    """Take the money; the first attempt fails, as networks do, and the job runs again."""
    if job.attempt == 1:
        raise ConnectionError("the bank does not answer")
    return f"{customer} has paid {amount} at attempt {job.attempt}"


@app.task(queue="mail")
async def notify(address: str, subject: str = "Your order") -> None:
    """Send a mail; a coroutine."""
    await asyncio.sleep(0)
    print(f"mail to {address}: {subject}")


@app.schedule(cron="0 3 * * *", timezone="Europe/Berlin", arguments={"days": 1})
@app.task(queue="reports")
def report(days: int) -> None:
    """Report on the last days, each night."""
    print(f"report of {days} days")


def main(lines: dict[str, int]) -> str:
    """Order something, and wait until it is paid and two people have mail."""
    order = Order("Ann", lines, datetime.now(UTC))
    paid = chain(price.s(order), charge.options(backoff="none").s("Ann", PREVIOUS)).call()
    group(notify.s("ann@example.org"), notify.s("store@example.org", subject="To send")).call()
    return str(paid)


if __name__ == "__main__":
    try:
        with app:
            wanted = [order.partition("=") for order in sys.argv[2:]]
            print(main({item: int(count) for item, _, count in wanted}))
    except DeadError as error:
        sys.exit(str(error))
