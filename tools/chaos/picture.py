"""Pictures of a chaos run as SVG: lines over time, and below them a bar for each fault."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Final, NamedTuple

from chaos.ledger import Disturbance

WIDTH: Final = 1100
_LEFT, _RIGHT, _TOP, _BOTTOM = 150, 14, 18, 24
_LANE: Final = 20
_GAP: Final = 2.5  # seconds without a value that break a line
_LONGEST: Final = 22  # letters of a lane's name

Points = Sequence[tuple[float, float]]


class Line(NamedTuple):
    """A line of a chart; ``colour`` is the name of a variable of the page's style."""

    name: str
    colour: str
    points: Points
    filled: bool = False


def chart(lines: Sequence[Line], seconds: float, unit: str, *, height: int = 220, log: bool = False) -> str:
    """Return a chart of lines over the seconds of the run."""
    top = max((value for line in lines for _, value in line.points), default=1.0)
    ticks = _decades(top) if log else _steps(top)
    across, up = _across(seconds), _up(ticks, height, log=log)
    body = [_grid(ticks, up, unit), _times(seconds, across, height)]
    for line in lines:
        body += _drawn(line, across, up, height)
    return _svg(height, body)


def lanes(faults: Sequence[Disturbance], seconds: float, colours: Mapping[str, str]) -> str:
    """Return a lane for each victim, with a bar for each of its faults."""
    victims = sorted({fault.victim for fault in faults}, key=_natural)
    height = _TOP + _LANE * len(victims) + _BOTTOM
    across = _across(seconds)
    body = [_times(seconds, across, height)]
    for at, victim in enumerate(victims):
        y = _TOP + _LANE * at
        body.append(f'<text class="lane" x="{_LEFT - 6}" y="{y + 13}">{escape(_short(victim))}</text>')
        body.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y + _LANE}" y2="{y + _LANE}"/>'
        )
        body += [_bar(fault, y, across, colours) for fault in faults if fault.victim == victim]
    return _svg(height, body)


def kind_of(fault: Disturbance) -> str:
    """Return what has happened, whatever it has happened to: the lane says that."""
    return fault.name.partition(" of ")[0]


def shade(faults: Iterable[Disturbance], seconds: float, healed: float | None, height: int = 220) -> str:
    """Return light bars behind a chart, for the time of each fault, and a line where all was healed."""
    across = _across(seconds)
    line = ""
    if healed is not None:
        x = f"{across(min(healed, seconds)):.1f}"
        line = f'<line class="healed" x1="{x}" x2="{x}" y1="{_TOP}" y2="{height - _BOTTOM}"/>'
        line += f'<text x="{x}" y="{_TOP - 3}" class="time">healed</text>'
    return line + "".join(
        f'<rect class="shade" x="{across(fault.begin):.1f}" y="{_TOP}" height="{height - _TOP - _BOTTOM}" '
        f'width="{max(1.5, across(fault.end) - across(fault.begin)):.1f}"/>'
        for fault in faults
    )


def _svg(height: int, body: Iterable[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(body)}</svg>'


def _bar(fault: Disturbance, y: int, across: Callable[[float], float], colours: Mapping[str, str]) -> str:
    width = max(3.0, across(fault.end) - across(fault.begin))
    told = f"{fault.name}, {fault.victim}: from {clock(fault.begin)} for {fault.end - fault.begin:.1f} s"
    return (
        f'<rect rx="2" x="{across(fault.begin):.1f}" y="{y + 3}" width="{width:.1f}" height="{_LANE - 6}" '
        f'style="fill:{colours[kind_of(fault)]}"><title>{escape(told)}</title></rect>'
    )


def _drawn(
    line: Line, across: Callable[[float], float], up: Callable[[float], float], height: int
) -> list[str]:
    """Return the path of a line, broken where a second has no value; with its area, if it is filled."""
    parts: list[list[tuple[float, float]]] = [[]]
    before = 0.0
    for second, value in line.points:
        if second - before > _GAP:
            parts.append([])
        parts[-1].append((across(second), up(value)))
        before = second
    drawn = []
    for part in filter(None, parts):
        path = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in part)
        if line.filled:
            floor = height - _BOTTOM
            area = f"{path}L{part[-1][0]:.1f},{floor}L{part[0][0]:.1f},{floor}Z"
            drawn.append(f'<path class="area" style="fill:var(--{line.colour})" d="{area}"/>')
        if len(part) == 1:
            x, y = part[0]
            drawn.append(f'<circle r="1.6" style="fill:var(--{line.colour})" cx="{x:.1f}" cy="{y:.1f}"/>')
        drawn.append(f'<path class="line" style="stroke:var(--{line.colour})" d="{path}"/>')
    return drawn


# ------------------------------------------------------------------ scales


def _across(seconds: float) -> Callable[[float], float]:
    return lambda second: _LEFT + (WIDTH - _LEFT - _RIGHT) * second / max(seconds, 1.0)


def _up(ticks: Sequence[float], height: int, *, log: bool) -> Callable[[float], float]:
    room = height - _TOP - _BOTTOM
    if not log:
        return lambda value: height - _BOTTOM - room * value / ticks[-1]
    low, high = math.log10(ticks[0]), math.log10(ticks[-1])
    return lambda value: height - _BOTTOM - room * (math.log10(max(value, ticks[0])) - low) / (high - low)


def _steps(top: float) -> list[float]:
    """Return four or five round values from 0 up to one that is not below the greatest."""
    top = max(top, 1.0)
    rough = top / 4
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough)
    return [step * number for number in range(math.ceil(top / step - 1e-9) + 1)]


def _decades(top: float) -> list[float]:
    return [10.0**power for power in range(1, max(3, math.ceil(math.log10(max(top, 1.0)))) + 1)]


def _grid(ticks: Sequence[float], up: Callable[[float], float], unit: str) -> str:
    lines = (
        f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{up(tick):.1f}" y2="{up(tick):.1f}"/>'
        f'<text class="value" x="{_LEFT - 6}" y="{up(tick) + 4:.1f}">{_figure(tick, unit)}</text>'
        for tick in ticks
    )
    return "".join(lines)


def _times(seconds: float, across: Callable[[float], float], height: int) -> str:
    step = next(
        interval for interval in (5, 10, 30, 60, 120, 300, 600, 1800, 7200) if seconds / interval <= 14
    )
    marks = range(0, int(seconds) + 1, step)
    floor = height - _BOTTOM
    return "".join(
        f'<line class="grid" x1="{across(at):.1f}" x2="{across(at):.1f}" y1="{_TOP}" y2="{floor}"/>'
        f'<text class="time" x="{across(at):.1f}" y="{height - 7}">{clock(at)}</text>'
        for at in marks
    )


def clock(seconds: float) -> str:
    """Return minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _figure(value: float, unit: str) -> str:
    if unit == "ms":
        return f"{value / 1000:g} s" if value >= 1000 else f"{value:g} ms"
    return f"{value:g} {unit}".strip()


def _short(victim: str) -> str:
    return victim if len(victim) <= _LONGEST else victim[: _LONGEST - 1] + "…"


def _natural(name: str) -> tuple[int, str]:
    """Return where a victim stands: brokers first, then nodes, then what lies between, then programs."""
    kinds = ("broker ", "node ")
    if "-" in name and " " not in name:
        return (3, name)
    return next(
        ((at, name) for at, kind in enumerate(kinds) if name.startswith(kind) and len(name) < 10), (2, name)
    )
