"""Tasks of the shop: ``python manage.py work`` runs them."""

from typing import Any

from django.conf import settings
from django.db import close_old_connections

from sluicemq import App, Middleware, TaskRun, TimeLimits


class Connections(Middleware):
    """Closes connections to the database that are too old or broken, as Django does around a request."""

    def before(self, run: TaskRun) -> None:  # noqa: ARG002 - the hook's
        """Look at the connections of this thread."""
        close_old_connections()

    def after(self, run: TaskRun, result: Any) -> None:  # noqa: ARG002
        """Look again."""
        close_old_connections()

    def on_error(self, run: TaskRun, error: BaseException) -> None:  # noqa: ARG002
        """Look again after a failure."""
        close_old_connections()


app = App(middleware=[TimeLimits(), Connections()], **settings.SLUICEMQ)


@app.task(queue="orders", retries=5, timeout="1m")
def send(order_id: int) -> None:
    """Send an order. It may run twice, and then finds the order sent."""
    from .models import Order  # noqa: PLC0415 - models are there once Django is set up

    order = Order.objects.get(pk=order_id)
    if not order.sent:
        order.sent = True
        order.save(update_fields=["sent"])
