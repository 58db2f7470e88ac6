"""Words that an argument may be: those of an enum, or their texts."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from sluicemq.arguments import text
from sluicemq.protocol.enums import Flow, JobState, Misfire, Span

#: A state of jobs.
StateWord: TypeAlias = Annotated[
    JobState | Literal["ready", "scheduled", "waiting", "reserved", "done", "dead"], text
]
#: A part of a queue that can be paused.
FlowWord: TypeAlias = Annotated[Flow | Literal["delivery", "intake"], text]
#: A span of time of a history.
SpanWord: TypeAlias = Annotated[Span | Literal["minute", "hour", "day", "month"], text]
#: A span of time up to now.
RecentWord: TypeAlias = Annotated[Literal["hour", "day", "month"], text]
#: Runs of a schedule that are made up for.
MisfireWord: TypeAlias = Annotated[Misfire | Literal["skip", "one", "all"], text]
