"""The text that Prometheus reads, written in turns of the hub.

prometheus_client writes a sample in 15 us, and a family in one turn: 13,000 samples of 1,000 queues blocked
the hub for 0.2 s. These samples have neither timestamps nor exemplars nor odd names, so a line is a name,
labels and a number; prometheus_client writes the lines above a family.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from typing import Final, NamedTuple

from prometheus_client.core import Metric, Sample
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder, generate_latest
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPEN_TYPE
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from sluicemq_devices.hub import in_parts, let_others_run

#: Lines that are written in one turn of the hub: about two milliseconds.
_TURN: Final = 1000
#: Whole numbers from here on are written with an exponent.
_LARGE: Final = 1_000_000
_ESCAPED: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class Form(NamedTuple):
    """A form of the text: its content type, its encoder of a family, and its last line."""

    content_type: str
    encode: Callable[[Collector], bytes]
    end: bytes


OPEN: Final = Form(OPEN_TYPE, openmetrics, b"# EOF\n")
PLAIN: Final = Form(CONTENT_TYPE_PLAIN_0_0_4, generate_latest, b"")


def form_for(accept: str) -> Form:
    """Return OpenMetrics for a client that accepts it, else the older form."""
    return OPEN if choose_encoder(accept)[1].startswith("application/openmetrics-text") else PLAIN


def written(families: Iterable[Metric], form: Form) -> bytes:
    """Return families as text."""
    parts: list[str] = []
    lines = 0
    for family in families:
        parts.append(_head(family.name, family.documentation, family.type, family.unit, form))
        for some in in_parts(family.samples, _TURN):
            parts.append("".join([_line(sample) for sample in some]))
            lines += len(some)
            if lines >= _TURN:
                lines = 0
                let_others_run()
    return "".join(parts).encode() + form.end


def _line(sample: Sample) -> str:
    name, labels, value = sample[:3]
    number = f"{value}.0" if type(value) is int and -_LARGE < value < _LARGE else str(floatToGoString(value))  # type: ignore[no-untyped-call]
    if not labels:
        return f"{name} {number}\n"
    if len(labels) == 1:
        ((label, text),) = labels.items()
        return f"{name}{{{_labelled(label, text)}}} {number}\n"
    several = ",".join([_labelled(label, text) for label, text in sorted(labels.items())])
    return f"{name}{{{several}}} {number}\n"


@lru_cache(10_000)
def _labelled(label: str, text: str) -> str:
    """Return ``label="text"``; cached, for each queue has a line in about fifty families."""
    return f'{label}="{text.translate(_ESCAPED)}"'


@cache
def _head(name: str, text: str, kind: str, unit: str, form: Form) -> str:
    """Return the lines above a family's samples."""
    return form.encode(_One(Metric(name, text, kind, unit))).removesuffix(form.end).decode()


class _One(Collector):
    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return [self._family]
