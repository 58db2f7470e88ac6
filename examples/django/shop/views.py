"""Pages of the shop."""

import uuid
from functools import partial

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from .models import Order
from .tasks import send


@csrf_exempt
@require_POST
@transaction.atomic
def order(request: HttpRequest) -> JsonResponse:
    """Take an order; the job that sends it is pushed once the order is committed, or not at all."""
    found = Order.objects.create(
        item=request.POST["item"], count=int(request.POST["count"]), job=uuid.uuid4().hex
    )
    # robust: the order stands without its job, too, and the admin can push that later.
    transaction.on_commit(partial(push, found), robust=True)
    return JsonResponse({"order": found.pk}, status=202)


def push(order: Order) -> None:
    """Have an order sent; returns when the job is stored durably."""
    send.options(id=order.job).push(order.pk).wait(5)
