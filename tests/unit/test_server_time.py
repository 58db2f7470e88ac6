"""The server's time: the best of several answers holds, slow ones say nothing, and it never goes back."""

from datetime import UTC, datetime
from typing import Any

import pytest

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.runtime import Measure
from sluicemq_broker.store import ServerClock
from support.jobs import NOW

#: The server's clock when this machine's monotonic one is 0.
AHEAD = NOW


class Server:
    """A MongoDB that answers ``hello`` after so many seconds each; its clock is read at the end of that."""

    def __init__(self, *delays: float) -> None:
        self.delays = list(delays)
        self.asked = 0
        self.monotonic = 1000.0
        self.ahead = AHEAD
        self.admin = self

    def command(self, _name: str) -> dict[str, Any]:
        self.asked += 1
        delay = self.delays.pop(0) if self.delays else 0.001
        self.monotonic += abs(delay)
        if delay < 0:
            raise UnavailableError("no answer")
        return {"localTime": datetime.fromtimestamp(self.time, UTC).replace(tzinfo=None)}

    @property
    def time(self) -> float:
        return self.monotonic + self.ahead


def a_clock(server: Server) -> ServerClock:
    return ServerClock(lambda: server.monotonic)


def off(clock: ServerClock, server: Server) -> float:
    return abs(clock.now() - server.time)


@pytest.mark.parametrize("slow", [12.0, 2.0, 0.5])
def test_a_slow_first_answer_sets_nothing_wrong(slow: float) -> None:
    server: Any = Server(slow)
    clock = a_clock(server)
    clock.set(server)
    assert off(clock, server) < 0.01
    assert server.asked == 2


def test_a_slow_answer_later_changes_nothing() -> None:
    server: Any = Server(0.002, 12.0, 0.8)
    clock = a_clock(server)
    clock.set(server)
    for _ in range(2):
        clock.measure(server)
        assert off(clock, server) < 0.01


def test_of_slow_answers_only_the_quickest_holds_with_warning(caplog: pytest.LogCaptureFixture) -> None:
    server: Any = Server(*[3.0, 1.0, 9.0] * 9)
    clock = a_clock(server)
    clock.set(server)
    assert off(clock, server) <= 0.51
    assert clock.error >= 0.5
    assert "its answers are slow" in caplog.text


def test_a_question_that_is_not_answered_is_asked_again() -> None:
    server: Any = Server(-3.0, -3.0, 0.001)
    clock = a_clock(server)
    clock.set(server)
    assert off(clock, server) < 0.01


def test_without_any_answer_there_is_no_clock() -> None:
    server: Any = Server(*[-1.0] * 100)
    with pytest.raises(UnavailableError):
        a_clock(server).set(server)


def test_the_time_stands_still_rather_than_go_back() -> None:
    # Given a first measure that was wrong by six seconds
    server: Any = Server()
    clock = a_clock(server)
    clock.learn(Measure(AHEAD + 5.9, 6.0, server.monotonic))
    before = clock.now()
    clock.measure(server)
    assert clock.now() == before
    server.monotonic += 10
    assert clock.now() > before
    assert off(clock, server) < 0.01


def test_a_server_whose_clock_was_set_is_followed_at_once() -> None:
    server: Any = Server()
    clock = a_clock(server)
    clock.set(server)
    server.ahead += 2.0
    clock.measure(server)
    assert off(clock, server) < 0.01


def test_a_server_whose_clock_was_set_back_by_an_hour_is_followed() -> None:
    server: Any = Server()
    clock = a_clock(server)
    clock.set(server)
    clock.now()
    server.ahead -= 3600
    clock.measure(server)
    assert off(clock, server) < 0.01


def test_a_good_measure_grows_old() -> None:
    server: Any = Server(0.001, 0.05)
    clock = a_clock(server)
    clock.set(server)
    server.ahead += 0.02  # the clocks drift apart
    server.monotonic += 600
    clock.measure(server)
    assert off(clock, server) <= 0.03
    assert clock.error < 0.05


@pytest.mark.parametrize("seconds", [2_592_000.0, -300.0, 0.2])
def test_a_clock_that_was_set_is_followed_and_said(seconds: float, caplog: pytest.LogCaptureFixture) -> None:
    server: Any = Server()
    clock = a_clock(server)
    jumps: list[float] = []
    clock.on_jump(jumps.append)
    clock.set(server)
    server.ahead += seconds
    clock.measure(server)
    # Then: a fifth of a second is nothing to tell
    assert off(clock, server) < 0.01
    assert [round(jump) for jump in jumps] == ([round(seconds)] if abs(seconds) > 1 else [])
    assert ("clock was set" in caplog.text) == (abs(seconds) > 1)
