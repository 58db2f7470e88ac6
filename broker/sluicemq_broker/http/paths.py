"""Paths of the API: each with the resource that answers it, and the permission that it needs."""

from __future__ import annotations

from typing import Final

from sluicemq_broker.security import Needs

BASE: Final = "/api/v1"

Routes = dict[str, tuple[object, Needs]]
