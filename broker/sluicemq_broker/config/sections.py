"""Sections of the configuration: the kinds of tables of a file, in the order in which they are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from sluicemq_broker.config.loading import Config

#: Name of the table that holds for all queues, or streams, without a table of their own.
OTHERS: Final = "*"


class Section(NamedTuple):
    """Tables of one kind: ``[name]``, ``[name.NAME]`` or ``[[name]]``, as the value of ``attribute`` is.

    ``others``: attribute of the settings of names without a table; ``live``: a running broker takes over
    tables that are added or removed.
    """

    name: str
    attribute: str
    others: str = ""
    live: bool = False

    def of(self, config: Config) -> Any:
        """Return the settings of one table, of tables by name, or of a list of tables."""
        found = getattr(config, self.attribute)
        return {OTHERS: getattr(config, self.others), **found} if self.others else found


SECTIONS: Final = (
    Section("broker", "broker"),
    Section("queues", "queues", "other_queues"),
    Section("streams", "streams", "other_streams"),
    Section("routes", "routes"),
    Section("schedules", "schedules"),
    Section("devices", "devices"),
    Section("security", "security"),
    Section("security.principals", "principals", live=True),
)
