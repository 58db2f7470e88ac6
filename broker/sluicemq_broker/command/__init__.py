"""The command ``sluicemq serve``: flags, configuration, embedded MongoDB, signals, exit codes."""

from sluicemq_broker.command.serve import main
