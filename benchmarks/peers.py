"""SluiceMQ and its peers at the same work, in turn: ``.venv-test/bin/python benchmarks/peers.py``.

It runs with what ``./deploy/test`` installs; the first time with ``--install``, for the peers.
200-byte jobs, one producer process and one worker process; at least once; everything on 127.0.0.1.
SluiceMQ, pymongo, keuss and kombu share one MongoDB. In each round every system does each case once,
in the other direction every other round; ratios are made inside a round, so that both sides had the
same machine. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

if _missing := [name for name in ("rich", "tomli_w", "gevent", "pymongo", "hdrh") if not find_spec(name)]:
    sys.exit(
        f"peers.py: {', '.join(_missing)} not installed for {sys.executable}; ./deploy/test "
        "tests/unit/test_pace.py makes .venv-test with all of it: .venv-test/bin/python benchmarks/peers.py"
    )

from rich.console import Console
from rich.progress import Progress

sys.path.extend(
    str(Path(__file__).resolve().parents[1] / folder) for folder in ("", "tests", "benchmarks/peers")
)

from servers import PEERS, Tools, served

from support.broker_process import BrokerProcess

OURS = "sluicemq"
TIMEOUT = 120.0
RATE = 100.0  # jobs a second of the latency case

# What each case is called, its share of the jobs, and whether less is better.
CASES = {
    "push_one": ("push one by one /s", 0.05, False),
    "push": ("push pipelined /s", 1.0, False),
    "drain": ("drain /s", 1.0, False),
    "both": ("push to done /s", 1.0, False),
    "p50": ("idle p50 ms", 0.0, True),
    "p99": ("idle p99 ms", 0.0, True),
}
# The same of 32 at once; whoever has no driver for it is left out.
CROWDS = {
    "together": ("32 threads, one producer", 0.25, False),
    "apart": ("32 threads, a producer each", 0.25, False),
}
# Messages that are kept and read by many; of those that have such.
STREAMS = {
    "publish": ("published /s, confirmed, pipelined", 1.0, False),
    "replay": ("replayed /s by one reader", 1.0, False),
}
_SOME = CROWDS | STREAMS  # of those whose driver has them
_ALL = CASES | _SOME
_RUNS = ("push_one", "together", "apart", "push", "drain", "both", "latency", "publish", "replay")
_LATENCY_JOBS = 200

Figures = dict[str, float]
_err = Console(stderr=True)


@dataclass(frozen=True)
class System:
    """One contestant: how its driver is run, and with what share of the jobs."""

    command: list[str]
    environment: Mapping[str, str]
    share: float
    some: tuple[str, ...] = ()
    streams: System | None = None
    """The same with its driver for kept messages."""

    def run(self, case: str, jobs: int) -> Figures:
        """Do one case once."""
        if case == "latency":
            return self._latency()
        if case in STREAMS and self.streams:
            return self.streams.run(case, jobs)
        jobs = max(200, int(jobs * self.share * _ALL[case][1]))
        self._reset()
        if case == "drain":
            self._play([("push", jobs, None)])
            roles = [("work", jobs, None)]
        elif case == "replay":
            self._play([("publish", jobs, None)])
            roles = [("replay", jobs, None)]
        else:
            roles = [("work", jobs, None), ("push", jobs, None)] if case == "both" else [(case, jobs, None)]
        seconds, _times = self._play(roles)
        return {case: jobs / seconds}

    def _latency(self) -> Figures:
        self._reset()
        roles = [("work", _LATENCY_JOBS, None), ("push_one", _LATENCY_JOBS, RATE)]
        _seconds, times = self._play(roles, IDLE="1")
        percentiles = statistics.quantiles(times, n=100)
        return {"p50": percentiles[49], "p99": percentiles[98]}

    def _reset(self) -> None:
        environment = {**os.environ, **self.environment}
        subprocess.run([*self.command, "reset"], env=environment, check=True, timeout=TIMEOUT)

    def _play(
        self, roles: Sequence[tuple[str, int, float | None]], **settings: str
    ) -> tuple[float, list[float]]:
        """Run processes together; the seconds up to the end of the first named, and its times."""
        processes = [self._start(*role, settings) for role in roles]
        try:
            for process in processes:
                if process.stdout.readline().strip() != "ready":
                    raise RuntimeError("a driver ended before the start")
            start = time.monotonic_ns() + 50_000_000
            outs = [
                process.communicate(f"{start}\n", timeout=TIMEOUT)[0] for process in _told(processes, start)
            ]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        found = json.loads(outs[0].strip().splitlines()[-1])
        return (found["ended"] - start) / 1e9, found["times"]

    def _start(
        self, role: str, jobs: int, rate: float | None, settings: Mapping[str, str]
    ) -> subprocess.Popen[str]:
        command = [*self.command, role, "--jobs", str(jobs), *(["--rate", str(rate)] if rate else [])]
        environment = {**os.environ, **self.environment, **settings}
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )


def _told(processes: list[subprocess.Popen[str]], start: int) -> list[subprocess.Popen[str]]:
    """All hear of the start before anybody is waited for."""
    for process in processes[1:]:
        process.stdin.write(f"{start}\n")
        process.stdin.flush()
    return processes


class Sluice:
    """Our own: the same cases by ``sluicemq bench``."""

    some = tuple(_SOME)

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        crowd = [sys.executable, str(Path(__file__).with_name("peers") / "crowd.py")]
        self._crowd = System(crowd, {"ENDPOINT": endpoint}, 1.0)
        streams = [sys.executable, str(Path(__file__).with_name("peers") / "sluice_streams.py")]
        self._streams = System(streams, {"ENDPOINT": endpoint}, 1.0)

    def run(self, case: str, jobs: int) -> Figures:
        """Do one case once."""
        if case == "latency":
            latency = self._bench("latency", "--jobs", _LATENCY_JOBS, "--rate", RATE)["latency_ms"]
            return {"p50": latency["p50"], "p99": latency["p99"]}
        if case in CROWDS:
            return self._crowd.run(case, jobs)
        if case in STREAMS:
            return self._streams.run(case, jobs)
        jobs = int(jobs * CASES[case][1])
        scenario = ["push", "--window", 1] if case == "push_one" else [case]
        return {case: self._bench(*scenario, "--jobs", jobs)["jobs_per_s"]}

    def _bench(self, *arguments: object) -> dict[str, Any]:
        command = [sys.executable, "-m", "sluicemq.cli", "bench", *map(str, arguments)]
        command += ["--endpoint", self._endpoint, "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=TIMEOUT)
        return dict(json.loads(done.stdout))


def main() -> int:
    """Run everything that can be run here."""
    options = _options()
    tools = Tools(options.folder)
    if options.install:
        tools.install()
    chosen = [name for name in options.peers if not _skipped(name, tools.missing(PEERS[name]))]
    with tempfile.TemporaryDirectory(prefix="sluicemq-peers-") as folder, ExitStack() as stack:
        systems = _systems(chosen, tools, Path(folder), stack)
        rounds = _measure(systems, options.rounds, options.jobs)
    text = _table(rounds, options, tools)
    print(text)
    if options.table:
        options.table.write_text(text + "\n")
    if options.plot:
        _plot(rounds, options.plot)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--install", action="store_true", help="install the peers first: apt-get, pip, npm")
    parser.add_argument("--peers", type=lambda text: text.split(","), default=list(PEERS), help="NAME,NAME")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--folder", type=Path, default=Path.home() / ".cache" / "sluicemq-peers")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write the table there too")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it: .svg or .png")
    options = parser.parse_args()
    if unknown := set(options.peers) - set(PEERS):
        parser.error(f"{', '.join(sorted(unknown))}: the peers are {', '.join(PEERS)}")
    return options


def _skipped(name: str, reason: str) -> bool:
    if reason:
        _err.print(f"{name} is skipped: {reason} (try --install)")
    return bool(reason)


def _systems(
    names: Sequence[str], tools: Tools, folder: Path, stack: ExitStack
) -> dict[str, System | Sluice]:
    """Start our broker with its MongoDB, and the servers of the peers."""
    broker = stack.enter_context(BrokerProcess())
    shared = {
        "MONGO_URL": broker.embedded_uri,
        "NODE_PATH": str(tools.node_modules),
    }
    systems: dict[str, System | Sluice] = {OURS: Sluice(broker.doors["smq"])}
    servers: dict[str, Mapping[str, str]] = {}
    for name in names:
        peer = PEERS[name]
        server = peer.beside or name
        try:
            if server not in servers:
                servers[server] = stack.enter_context(served(PEERS[server], folder / server))
        except (TimeoutError, OSError) as error:
            _skipped(name, str(error))
            continue
        environment = {**shared, **servers[server], **peer.settings}
        some = (*(("together",) if peer.crowd else ()), *(STREAMS if peer.streams else ()))
        streams = None
        if peer.streams:
            streams = System(tools.command(replace(peer, driver=peer.streams)), environment, 1.0)
        systems[name] = System(tools.command(peer), environment, peer.share, some, streams)
    return systems


def _measure(systems: Mapping[str, System | Sluice], rounds: int, jobs: int) -> list[dict[str, Figures]]:
    """For each round, the figures of each system."""
    found: list[dict[str, Figures]] = [defaultdict(dict) for _ in range(rounds)]
    with Progress(console=_err) as progress:
        task = progress.add_task("", total=rounds * len(_turns(systems)))
        for number, figures in enumerate(found):
            for case, name in _turns(systems, backwards=number % 2 > 0):
                progress.update(task, description=f"{case} {name}", advance=1)
                figures[name] |= _figures(name, systems[name], case, jobs)
    return found


def _turns(systems: Mapping[str, System | Sluice], *, backwards: bool = False) -> list[tuple[str, str]]:
    """Who does what after what in one round."""
    names = list(systems)[:: -1 if backwards else 1]
    return [
        (case, name) for case in _RUNS for name in names if case not in _SOME or case in systems[name].some
    ]


def _figures(name: str, system: System | Sluice, case: str, jobs: int) -> Figures:
    """One that fails has no figure; the others go on."""
    try:
        return system.run(case, jobs)
    except (subprocess.SubprocessError, RuntimeError, ValueError, IndexError) as error:
        _err.print(f"{case} of {name} failed: {error}")
        return {}


def _table(rounds: Sequence[dict[str, Figures]], options: argparse.Namespace, tools: Tools) -> str:
    lines = [
        f"{os.cpu_count()} cores, {options.jobs:,} jobs of 200 bytes, {len(rounds)} rounds.",
        "Medians (least .. most); in bold, how many times better SluiceMQ is.",
        "",
        "| | confirmed means | " + " | ".join(title for title, _share, _less in CASES.values()) + " |",
        "|---" * (len(CASES) + 2) + "|",
    ]
    for name in rounds[0]:
        durable = PEERS[name].durable if name in PEERS else "majority, journal"
        cells = [_cell(rounds, name, case) for case in CASES]
        lines.append(
            f"| {name} {tools.version_of(PEERS[name]) if name in PEERS else ''} | {durable} | "
            + " | ".join(cells)
            + " |"
        )
    lines += [*_crowds(rounds), *_streams(rounds)]
    clients = ", ".join(f"{name} {version}" for name, version in tools.versions().items())
    return "\n".join([*lines, "", f"Clients: {clients or 'none'}."])


def _crowds(rounds: Sequence[dict[str, Figures]]) -> list[str]:
    """Many at once, and how many times as fast as one ``insert_one`` loop in the same round."""
    lines = ["", "| push one by one, 32 at once | /s | times one insert_one loop |", "|---|---|---|"]
    for name in rounds[0]:
        for case, (title, _share, _less) in CROWDS.items():
            values = [figures[name][case] for figures in rounds if case in figures[name]]
            loops = [
                figures[name][case] / figures["pymongo"]["push_one"]
                for figures in rounds
                if case in figures[name] and "push_one" in figures.get("pymongo", {})
            ]
            if values:
                lines.append(f"| {name}: {title} | {_spread(values)} | {_spread(loops) if loops else '-'} |")
    return lines


def _streams(rounds: Sequence[dict[str, Figures]]) -> list[str]:
    """Kept messages; in bold, how many times better SluiceMQ is."""
    titles = " | ".join(title for title, _share, _less in STREAMS.values())
    lines = ["", f"| streams | {titles} |", "|---" * (len(STREAMS) + 1) + "|"]
    shown = [
        name for name in rounds[0] if any(case in results[name] for results in rounds for case in STREAMS)
    ]
    cells = {name: " | ".join(_cell(rounds, name, case) for case in STREAMS) for name in shown}
    return [*lines, *(f"| {name} | {text} |" for name, text in cells.items())]


def _cell(rounds: Sequence[dict[str, Figures]], name: str, case: str) -> str:
    values = [figures[name][case] for figures in rounds if case in figures[name]]
    if not values:
        return "-"
    text = _spread(values)
    ratios = _ratios(rounds, name, case)
    return text if name == OURS or not ratios else f"{text}<br>**{_spread(ratios)}**"


def _ratios(rounds: Sequence[dict[str, Figures]], name: str, case: str) -> list[float]:
    """How many times better we are, in each round."""
    pairs = [
        (figures[OURS][case], figures[name][case])
        for figures in rounds
        if case in figures[OURS] and case in figures[name]
    ]
    return [theirs / ours if _ALL[case][2] else ours / theirs for ours, theirs in pairs]


def _spread(values: Sequence[float]) -> str:
    least, median, most = min(values), statistics.median(values), max(values)
    return f"{_number(median)} ({_number(least)} .. {_number(most)})" if len(values) > 1 else _number(median)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def _plot(rounds: Sequence[dict[str, Figures]], file: Path) -> None:
    """Bars for each case that is a rate."""
    import matplotlib as mpl  # noqa: PLC0415 - optional

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    cases = [case for case, (_title, _share, less) in CASES.items() if not less]
    figure, axes = plt.subplots(
        1, len(cases), figsize=(3.2 * len(cases), 3.2), layout="constrained", sharey=True
    )
    names = list(rounds[0])[::-1]
    for axis, case in zip(axes, cases, strict=True):
        values = [[figures[name].get(case, 0.0) for figures in rounds] for name in names]
        colours = ["tab:orange" if name == OURS else "tab:blue" for name in names]
        axis.barh(names, [statistics.median(value) for value in values], color=colours)
        axis.set_title(CASES[case][0], fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)


if __name__ == "__main__":
    sys.exit(main())
