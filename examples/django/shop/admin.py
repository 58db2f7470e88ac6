"""Orders in the admin, each with a link to its job in the dashboard."""

from __future__ import annotations

from django.conf import settings
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html

from .models import Order
from .tasks import send
from .views import push


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    """The list of orders; an action pushes the jobs of some once more."""

    list_display = ("item", "count", "sent", "in_dashboard")
    list_filter = ("sent",)
    actions = ("push_again",)

    @admin.display(description="job")
    def in_dashboard(self, order: Order) -> str:
        """Return a link to the order's job."""
        address = f"{settings.SLUICEMQ_DASHBOARD}/#/queues/{send.queue}/jobs/{order.job}"
        return format_html('<a href="{}">{}</a>', address, order.job)

    @admin.action(description="Push the jobs of orders that are not sent")
    def push_again(self, _request: HttpRequest, orders: QuerySet[Order]) -> None:
        """Push jobs that were lost between a commit and its push; one that is there is not pushed twice."""
        for order in orders.filter(sent=False):
            push(order)
