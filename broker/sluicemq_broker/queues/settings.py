"""Settings of queues in force: what is stored in MongoDB, over what the file of this broker says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sluicemq.protocol.errors import BadFramesError
from sluicemq.protocol.rows import SettingRow
from sluicemq_broker.config import (
    Config,
    Layer,
    QueueSettings,
    SettingOrigin,
    circle_of_dead_letters,
    explained,
    problems_of_queue,
    with_stored,
)
from sluicemq_broker.queues.records import QueueRecords
from sluicemq_broker.store import ALL_QUEUES
from sluicemq_devices.hub import in_pieces


class SharedSettings:
    """The settings of all queues; ``config``: the file, which may be read again.

    What is stored of a queue lies over what is stored of all queues, and that over every table of the file.
    """

    def __init__(self, config: Config, records: QueueRecords) -> None:
        self.config = config
        self._records = records

    def of(self, name: str) -> QueueSettings:
        """Return the settings of a queue.

        Brokers whose files differ may make a circle of ``on_dead`` together, though none was there where it
        was set. Such a queue goes by the file.
        """
        settings, file = self._of(name), self.config.queue(name)
        if settings.on_dead == file.on_dead or not circle_of_dead_letters(self._of, name):
            return settings
        return replace(settings, on_dead=file.on_dead)

    def database(self, name: str) -> str:
        """Return the name of the database with the jobs of a queue, which no stored setting changes."""
        return self.config.queue(name).database or self.config.broker.database

    def explain(self, name: str) -> tuple[SettingRow, ...]:
        """Return each setting of a queue: ``{key, value, source}``, and ``file`` where that is another."""
        return explained(self.config.queue(name), *self._layers(name))

    def check(self, name: str, stored: Mapping[str, str]) -> None:
        """Raise BadFrames if queues can't have their settings together once this is stored of one.

        What is wrong already does not count, so that it can be mended step by step.
        """
        names = [name] if name != ALL_QUEUES else [name, *self.config.queues, *self._records.names()]
        for key in in_pieces(names):
            for problem in problems_of_queue(lambda queue: self._of(queue, {name: stored}), key):
                if problem not in set(problems_of_queue(self._of, key)):
                    raise BadFramesError(f"queue {key!r}: {problem.message}")

    def _of(self, name: str, changed: Mapping[str, Mapping[str, str]] | None = None) -> QueueSettings:
        return with_stored(self.config.queue(name), *self._layers(name, changed))

    def _layers(self, name: str, changed: Mapping[str, Mapping[str, str]] | None = None) -> list[Layer]:
        def stored(of: str) -> Mapping[str, str]:
            if changed is not None and of in changed:
                return changed[of]
            return self._records.of(self.database(name), of).settings

        if name == ALL_QUEUES:
            return [Layer(SettingOrigin.MONGODB, stored(ALL_QUEUES))]
        return [
            Layer(SettingOrigin.MONGODB_ALL, stored(ALL_QUEUES)),
            Layer(SettingOrigin.MONGODB, stored(name)),
        ]
