"""Tables of the shop."""

from django.db import models


class Order(models.Model):
    """An order; ``job``: the id of the job that sends it."""

    item = models.CharField(max_length=100)
    count = models.PositiveIntegerField()
    job = models.CharField(max_length=64, blank=True)
    sent = models.BooleanField(default=False)

    def __str__(self) -> str:
        return f"{self.count} {self.item}"
