"""Report of a chaos run: one page with what was promised, a picture of the faults, and each breach.

``python -m chaos.report FOLDER FILE`` writes it once more, with the breaches that stand in the folder.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from chaos.breach import Breach
from chaos.checker import summary_of
from chaos.figures import Figures, faults, figures, healed, packs
from chaos.ledger import Disturbance, Ledger
from chaos.picture import Line, chart, clock, kind_of, lanes, shade

#: What the checker found, beside the books.
_BREACHES: Final = "breaches.json"
#: Colours of kinds of faults, for light and dark pages.
_COLOURS: Final = (
    "#d1495b", "#edae49", "#3d8eb9", "#8a6fb8", "#2f9c8f", "#c06c2e",
    "#b5577f", "#6b8f3c", "#4f6fc4", "#a58a3a", "#7b8794", "#c44fb0",
)  # fmt: skip
_PROMISES: Final = {
    "lost": "nothing confirmed is lost",
    "unexpected": "nothing runs that nobody pushed",
    "again": "nothing runs again after a confirmed end",
    "order": "jobs of one key run in their order",
    "limit": "no limit is exceeded",
    "result": "each answer is right",
    "stream": "no hole in the stream, nothing twice",
    "stuck": "nothing is stuck",
    "hung": "no call hangs",
    "refused": "no push is refused without a reason",
    "counters": "counters add up",
    "memory": "memory is flat",
    "files": "what clients leave is closed",
    "log": "no error in a log",
    "failed": "no program fails",
}


def write(file: Path, folder: Path, breaches: Sequence[Breach], title: str = "") -> None:
    """Write the page of a run, and keep the breaches in its folder."""
    kept = [[breach.kind, breach.text, breach.evidence] for breach in breaches]
    (folder / _BREACHES).write_text(json.dumps(kept))
    ledger = Ledger.read(folder)
    its = figures(ledger, folder)
    its_faults = faults(ledger, its.began, its.seconds)
    page = [
        _head(title or "Chaos run", its, its_faults, breaches),
        _tiles(summary_of(ledger), its, its_faults, packs(folder)),
        _pictures(its, its_faults, healed(folder, its.began)),
        _promises(breaches),
        _breaches(breaches),
        _allowed(summary_of(ledger)["allowed"]),
        _table_of_faults(its_faults),
    ]
    file.write_text(_PAGE.replace("TITLE", escape(title or "Chaos run")).replace("BODY", "\n".join(page)))


def _head(title: str, its: Figures, found: Sequence[Disturbance], breaches: Sequence[Breach]) -> str:
    state = _breaches_in_words(len(breaches)) if breaches else "every promise was kept"
    kinds = len({disturbance.name for disturbance in found})
    return (
        f'<header><h1>{escape(title)}</h1><p class="verdict {"bad" if breaches else "good"}">{state}</p>'
        f"<p>{clock(its.seconds)} minutes, {len(found)} faults of {kinds} kinds, "
        "three brokers, three MongoDB nodes, thirteen programs.</p></header>"
    )


def _breaches_in_words(count: int) -> str:
    return "1 breach" if count == 1 else f"{count} breaches"


def _tiles(facts: dict[str, Any], its: Figures, found: Sequence[Disturbance], packed: dict[str, int]) -> str:
    rest, since = its.longest_rest
    tiles = {
        "jobs confirmed": f"{facts['confirmed']:,}",
        "runs": f"{facts['runs']:,}",
        "jobs run more than once": f"{facts['run more than once']:,}",
        "jobs in packs": f"{packed.get('jobs', 0):,}",
        "jobs lifted out of packs": f"{packed.get('lifted', 0):,}",
        "stream messages": f"{facts['messages']:,}",
        "faults": f"{len(found)}",
        f"longest rest, at {clock(since)}": f"{rest} s",
    }
    shown = (
        f'<div class="tile"><b>{value}</b><span>{escape(name)}</span></div>' for name, value in tiles.items()
    )
    return f'<section class="tiles">{"".join(shown)}</section>'


def _pictures(its: Figures, found: Sequence[Disturbance], all_healed: float | None) -> str:
    colours = _colours(found)
    behind = shade(found, its.seconds, all_healed)
    through = [
        Line("confirmed", "confirmed", [*enumerate(map(float, its.confirmed))]),
        Line("done", "done", [*enumerate(map(float, its.done))], filled=True),
    ]
    waits = [
        Line("p99", "slowest", [(at, value) for at, value in enumerate(its.slowest) if value is not None]),
        Line("median", "median", [(at, value) for at, value in enumerate(its.median) if value is not None]),
    ]
    memory = [Line(name, f"line{at}", points) for at, (name, points) in enumerate(sorted(its.memory.items()))]
    return "".join(
        [
            _figure("Jobs in each second", through, _on(behind, chart(through, its.seconds, "/s"))),
            _figure("From push to end, jobs that wait for a worker only", waits,
                    _on(behind, chart(waits, its.seconds, "ms", log=True))),
            _card(f"Faults {_legend(colours)}", lanes(found, its.seconds, colours)),
            _figure("Memory of the brokers", memory, chart(memory, its.seconds, "MiB", height=140)),
        ]
    )  # fmt: skip


def _on(behind: str, picture: str) -> str:
    head, _, rest = picture.partition(">")
    return f"{head}>{behind}{rest}"


def _figure(caption: str, lines: Sequence[Line], picture: str) -> str:
    keys = "".join(_entry(f"var(--{series.colour})", series.name) for series in lines)
    return _card(f'{escape(caption)} <span class="legend">{keys}</span>', picture)


def _card(caption: str, picture: str) -> str:
    return f"<figure><figcaption>{caption}</figcaption>{picture}</figure>"


def _entry(colour: str, name: str) -> str:
    return f'<span><i style="background:{colour}"></i>{escape(name)}</span> '


def _legend(colours: dict[str, str]) -> str:
    keys = (_entry(colour, name) for name, colour in colours.items())
    return f'<span class="legend">{"".join(keys)}</span>'


def _colours(found: Iterable[Disturbance]) -> dict[str, str]:
    names = sorted({kind_of(disturbance) for disturbance in found})
    return {name: _COLOURS[at % len(_COLOURS)] for at, name in enumerate(names)}


def _promises(breaches: Sequence[Breach]) -> str:
    counts = Counter(breach.kind for breach in breaches)
    rows = (
        f'<li class="bad"><b>✗</b> {escape(promise)}: {_breaches_in_words(counts[kind])}</li>'
        if counts[kind]
        else f'<li class="good"><b>✓</b> {escape(promise)}</li>'
        for kind, promise in _PROMISES.items()
    )
    return f'<section><h2>What was promised</h2><ul class="promises">{"".join(rows)}</ul></section>'


def _breaches(breaches: Sequence[Breach]) -> str:
    if not breaches:
        return ""
    shown = (
        f"<details><summary><b>{escape(breach.kind)}</b> {escape(breach.text)}</summary>"
        f"<pre>{escape(chr(10).join(breach.evidence))}</pre></details>"
        for breach in breaches
    )
    return f"<section><h2>Breaches</h2>{''.join(shown)}</section>"


def _allowed(allowed: dict[str, int]) -> str:
    if not allowed:
        return ""
    rows = "".join(
        f"<tr><td>{count}</td><td>{escape(why)}</td></tr>" for why, count in sorted(allowed.items())
    )
    return (
        "<section><h2>Runs after a confirmed end that the documentation allows</h2>"
        f"<table><tr><th>runs</th><th>because</th></tr>{rows}</table></section>"
    )


def _table_of_faults(found: Sequence[Disturbance]) -> str:
    rows = "".join(
        f"<tr><td>{clock(disturbance.begin)}</td><td>{escape(disturbance.name)}</td><td>{escape(disturbance.victim)}</td>"
        f"<td>{disturbance.end - disturbance.begin:.1f} s</td></tr>"
        for disturbance in sorted(found, key=lambda disturbance: disturbance.begin)
    )
    return (
        f"<section><h2>Faults</h2><details><summary>{len(found)} faults in their order</summary>"
        f"<table><tr><th>at</th><th>fault</th><th>victim</th><th>for</th></tr>{rows}</table></details></section>"
    )


_PAGE: Final = (Path(__file__).parent / "report.html").read_text()


def main() -> None:
    """Write the page of a run that is over."""
    folder, file = map(Path, sys.argv[1:3])
    kept = json.loads((folder / _BREACHES).read_text()) if (folder / _BREACHES).exists() else []
    write(file, folder, [Breach(*breach) for breach in kept])


if __name__ == "__main__":
    main()
