"""Counters of the devices, each with its name, meaning and unit."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

_OF_DEVICE = ("device", "kind", "queue")


class Metric(StrEnum):
    """Base of all named figures: ``unit`` is that of one count, ``labels`` split the sum."""

    text: str
    unit: str
    labels: tuple[str, ...]

    def __new__(cls, name: str, text: str, unit: str, labels: tuple[str, ...] = ()) -> Self:
        """Make a figure of its name in ``stats`` and in the log, a sentence, its unit and its labels."""
        figure = str.__new__(cls, name)
        figure._value_ = name
        figure.text, figure.unit, figure.labels = text, unit, labels
        return figure

    @property
    def kind(self) -> str:
        """Kind of the figure: ``counter`` only grows, from 0 at the start; ``gauge`` goes up and down."""
        return "counter"


class DeviceCount(Metric):
    """Counters of one device since the broker's start."""

    RECEIVED = "received", "messages that have come in at its front", "messages", _OF_DEVICE
    SENT = "sent", "messages given to its workers, or to subscribers: once for each", "messages", _OF_DEVICE
    LOST = (
        "lost",
        "messages not stored of which nobody else hears, or not sent to a subscriber that was behind",
        "messages",
        _OF_DEVICE,
    )
    PAUSED = "paused", "time for which its front was not read, summed up", "ms", _OF_DEVICE


class Mishap(Metric):
    """Counters of what goes wrong on connections and in devices; each is logged, too."""

    ANSWERS_WAITED = (
        "answers_waited",
        "times that answers began to wait for room beside others that nobody has read",
        "times",
    )
    CALLBACKS_FAILED = "callbacks_failed", "callbacks of a device that raised an error: bugs", "callbacks"
    CONNECTIONS_CUT = "connections_cut", "connections ended here: silent, malformed, unread", "connections"
    CONNECTIONS_REFUSED = (
        "connections_refused",
        "connections refused: too many, or no file for them",
        "connections",
    )
    DIAL_FAILED = "dial_failed", "tries to connect to an address that failed", "tries"
    HANDSHAKES_ENDED = (
        "handshakes_ended",
        "unfinished handshakes that were ended because there were too many, of the address with the most",
        "connections",
    )
    HANDSHAKES_FAILED = (
        "handshakes_failed",
        "handshakes of ZMTP that were not done: the peer left, or its key is a wrong one",
        "connections",
    )
    HANDSHAKES_REFUSED = (
        "handshakes_refused",
        "clients that did not get in: their key or password is unknown, or they have none",
        "connections",
    )
    LARGE_MESSAGES_WAITED = (
        "large_messages_waited",
        "times that a message had to wait for room beside other unfinished ones",
        "messages",
    )
    MESSAGES_LOST = "messages_lost", "messages not sent to subscribers past their mark", "messages"
    QUESTIONS_LOST = "questions_lost", "times that a worker left with questions unanswered", "workers"
    REPLIES_DROPPED = "replies_dropped", "replies whose client had left or did not read", "messages"
    SUBSCRIBERS_BEHIND = (
        "subscribers_behind",
        "times that a subscriber read too slowly and began to lose messages",
        "subscribers",
    )
    SUBSCRIPTIONS_REFUSED = (
        "subscriptions_refused",
        "subscriptions not taken: too many, or too long",
        "subscriptions",
    )
