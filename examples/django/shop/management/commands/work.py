"""``python manage.py work``: run the tasks of the shop until Ctrl-C or SIGTERM."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand
from shop.tasks import app


class Command(BaseCommand):
    """Runs tasks in this process."""

    help = "Run the tasks of the shop."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take --concurrency."""
        parser.add_argument("--concurrency", type=int, default=4, help="tasks that run at a time")

    def handle(self, *_args: Any, concurrency: int, **_options: Any) -> None:
        """Work until a signal."""
        app.worker(concurrency=concurrency).run()
