"""First messages of sockets with ``ZMQ_PROBE_ROUTER``, at doors that answer each message once."""

from __future__ import annotations

from sluicemq_broker.runtime import Count, Counters


def without_probes(messages: list[list[bytes]], counters: Counters) -> list[list[bytes]]:
    """Return the messages without those that end with their envelope: nobody awaits an answer to these.

    A probe is one empty frame. To answer it would give the client's first question this answer, the second
    question the first one's, and so on.
    """
    if all(frames[-1] for frames in messages):
        return messages
    questions = [frames for frames in messages if frames[-1] or frames.index(b"", 1) < len(frames) - 1]
    counters.add(Count.PROBES, len(messages) - len(questions))
    return questions
