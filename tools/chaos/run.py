"""One chaos run: faults of a plan happen to a rig under load; then all is healed, drained and checked."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from chaos import checker, report
from chaos.breach import Breach
from chaos.fault_kinds import FAULTS, Fault
from chaos.load import MAY, PROGRAMS, Load, configuration
from chaos.packed import packed
from chaos.plan import Step, plan
from chaos.rig import Rig

VERBS: Final = frozenset(("kill", "freeze", "terminate"))
#: Seconds in which all that was pushed has to be done, once no fault is left: a busy machine is slow.
DRAINED: Final = 300.0
_LOOK: Final = 0.5  # seconds between two looks for brokers that have ended


class Outcome(NamedTuple):
    """What a run has found."""

    steps: list[Step]
    breaches: list[Breach]


def may() -> dict[str, frozenset[str]]:
    """Return what may happen to each program of the load."""
    return {name: MAY.get(name, VERBS) for name in PROGRAMS}


def run(
    seed: int,
    seconds: float,
    folder: Path,
    faults: Sequence[Fault] = FAULTS,
    page: Path | None = None,
    pace: float = 1.0,
    say: Callable[[str], None] = print,
) -> Outcome:
    """Run all of it; the books, the logs and the report stay in ``folder``."""
    steps = plan(seed, seconds, faults, may())
    with Rig(seed, folder, configuration()) as rig, Load(rig, pace) as load:
        rig.own(load.programs)
        load.start()
        _carry_out(rig, steps, faults, say)
        rig.heal()
        rig.note("calm")
        say("all is healed; draining")
        drained = load.drain(DRAINED)
        say("drained" if drained else f"not drained within {DRAINED:.0f} s")
        packs = packed(rig.mongo_uri, rig.database)
        rig.note("packed", **packs)
        say("of {jobs} jobs in {packs} packs {lifted} were lifted out".format_map(packs))
        breaches = checker.check(folder, rig.mongo_uri, rig.database)
        breaches += [Breach("stop", text) for text in rig.stop()]
    report.write(page or folder / "report.html", folder, breaches)
    return Outcome(steps, breaches)


def _carry_out(rig: Rig, steps: Sequence[Step], faults: Sequence[Fault], say: Callable[[str], None]) -> None:
    """Begin each fault when the plan says so, and end it after its time, also on a machine that is late."""
    by_name = {fault.name: fault for fault in faults}
    began = time.monotonic()
    agenda = [(began + step.at, step) for step in steps]
    begun: dict[Step, object] = {}
    while agenda:
        agenda.sort(reverse=True)
        moment, step = agenda.pop()
        _wait(rig, moment)
        fault = by_name[step.fault]
        if step in begun:
            rig.note("end", fault=step.fault, victim=step.victim)
            fault.end(rig, step.victim, begun.pop(step))
        else:
            say(str(step))
            rig.note("begin", fault=step.fault, victim=step.victim)
            begun[step] = fault.begin(rig, step.victim)
            agenda.append((time.monotonic() + step.until - step.at, step))


def _wait(rig: Rig, until: float) -> None:
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _LOOK))
        rig.watch()
