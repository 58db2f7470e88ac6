"""``sluicemq work app:tasks``: processes that run the tasks of an app."""

from __future__ import annotations

import os

import click

from sluicemq.app.process import Orders
from sluicemq.app.supervisor import Supervisor, serve_health
from sluicemq.cli.output import Invocation
from sluicemq.protocol.environment import OF_CLIENTS


def run_tasks(
    invocation: Invocation, orders: Orders, processes: int, *, reload: bool, health: int | None
) -> int:
    """Run the tasks of an app in processes until a signal; return the exit status."""
    given = {
        "endpoint": invocation.named,
        "key_file": invocation.key_file,
        "server_key": invocation.server_key,
        "profile": invocation.profile,
        "user": invocation.user,
    }
    environment = {OF_CLIENTS[key]: value for key, value in given.items() if value}
    supervisor = Supervisor(orders, processes, reload=reload, environment=environment, note=invocation.note)
    if health is None:
        return supervisor.run()
    try:
        server = serve_health(supervisor, health)
    except OSError as error:
        raise click.UsageError(f"--health {health}: {os.strerror(error.errno or 0)}") from None
    try:
        return supervisor.run()
    finally:
        server.shutdown()
