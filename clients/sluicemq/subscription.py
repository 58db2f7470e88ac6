"""Subscriptions: a stream is worked through once, by one of several workers that can take over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Unpack, cast, overload

from sluicemq._deprecated import Keyword, endpoint_first
from sluicemq.arguments import checked
from sluicemq.complaints import complain, log
from sluicemq.handlers import check, check_callback
from sluicemq.life import LongLived
from sluicemq.message import Message
from sluicemq.protocol import wire
from sluicemq.protocol.errors import (
    BadStreamError,
    GapError,
    HeldError,
    LeaseLostError,
    NotAdmittedError,
    SluiceError,
    TimeoutError,
    UnavailableError,
)
from sluicemq.protocol.names import KIND_RULE, QUEUE_NAME_RULE, is_kind, is_queue_name
from sluicemq.protocol.readable import said
from sluicemq.reader import Reader
from sluicemq.start import OLDEST, Start, StartArgument, start_behind, watermark_of
from sluicemq.stop_signals import StopSignals
from sluicemq.transport.access import Access, Broker
from sluicemq.transport.connection import Connection
from sluicemq.transport.credentials import AccessOptions
from sluicemq.transport.questions import Questions

#: The kind of a worker that follows a stream; other words are kinds of their own.
UPDATE: Final = "update"
REBUILD: Final = "rebuild"

#: Seconds between two tries to get a subscription that another has; first and longest pause after a failure.
_STANDBY: Final = 0.5
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 30.0
#: Seconds within which a follower looks whether it should stop, or another has taken over.
_LOOK: Final = 0.25
#: Messages without a wanted topic, until the watermark is stored.
_PASSED: Final = 1000


class Hold(NamedTuple):
    """One hold of a subscription: ``fence`` identifies it for ever, ``watermark`` is where it began."""

    fence: int
    watermark: int


class Batch(Sequence[Message]):
    """Messages for a handler, in order; store ``last`` and ``fence`` beside your data.

    ``last``: the number of the last message. ``fence`` identifies the hold. ``newest``: the newest number
    that is known, at which a rebuild ends.
    """

    __slots__ = ("_messages", "fence", "newest")

    def __init__(self, messages: Sequence[Message], fence: int, newest: int) -> None:
        self._messages = messages
        self.fence = fence
        self.newest = newest

    @property
    def first(self) -> int:
        """Return the number of its first message."""
        return self._messages[0].sequence

    @property
    def last(self) -> int:
        """Return the number of its last message."""
        return self._messages[-1].sequence

    @overload
    def __getitem__(self, at: int) -> Message: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Message]: ...
    def __getitem__(self, at: int | slice) -> Message | Sequence[Message]:
        return self._messages[at]

    def __len__(self) -> int:
        return len(self._messages)


@endpoint_first(
    "stream",
    "name",
    "handler",
    after=Keyword("restart", "Subscription(restart=Start.at(after + 1))", start_behind),
    start=Keyword("start", "Subscription(start=Start.at(start + 1))", start_behind, of=int),
    begin=Keyword("on_restart"),
    watermark=Keyword("position"),
)
@checked()
class Subscription(LongLived):
    """Gives the messages of a stream to ``handler(batch)``, one batch after the other, at least once each.

    One holder at a time works under a ``name``. ``kind`` is the kind of its work: while an ``update`` works,
    or has vanished without releasing its hold, no ``rebuild`` can work, and the other way round; it raises
    :class:`~sluicemq.HeldError`. Others of its kind stand by. They take over when the holder has gone, at the
    stored watermark. A subscription waits for a stream that does not exist, with a warning in the log. With
    ``wait=False``, a subscription that another holds raises :class:`~sluicemq.HeldError`, and a missing
    stream :class:`~sluicemq.BadStreamError`.

    The watermark is stored after each batch, under the fence of the hold. A late one, after another has taken
    over, is refused, and this subscription starts again. If a handler raises, it gets the batch again, after
    a pause that grows to 30 seconds, until it succeeds. For exactly-once effects let the handler store
    ``batch.last`` (and refuse a smaller ``batch.fence``) in one transaction with its data, and return the
    stored number from ``position``.

    * ``start``: where a new name begins, a :class:`~sluicemq.Start`; by default with all that is kept.
    * ``restart``: a :class:`~sluicemq.Start` that counts instead of the stored watermark, for a rebuild; a
      hold of this kind that was broken off goes on where it was.
    * ``on_restart(fence)``: called before the first message of a hold that stands where ``restart`` says, to
      make room; it may be called again.
    * ``position()``: returns the number of the last message that your data has.
    * ``follow=False``: end, and release the hold, after the newest message.
    * ``on_gap(gap)``: called for messages that were removed before they were read; without it :meth:`run`
      raises :class:`~sluicemq.GapError`.

    ``endpoint``: as for a :class:`~sluicemq.Client`. Each process makes its own subscriptions: none survives
    a fork.
    """

    def __init__(
        self,
        stream: str,
        name: str,
        handler: Callable[[Batch], Any],
        *,
        kind: str = UPDATE,
        batch: int = 100,
        topics: Iterable[str | bytes] = (),
        start: StartArgument = OLDEST,
        restart: StartArgument | None = None,
        on_restart: Callable[[int], Any] | None = None,
        position: Callable[[], int] | None = None,
        follow: bool = True,
        wait: bool = True,
        on_gap: Callable[[GapError], None] | None = None,
        timeout: float = 10.0,
        endpoint: Broker = None,
        **access: Unpack[AccessOptions],
    ) -> None:
        check(cast("Any", handler))
        _check_names(stream, name)
        if not is_kind(kind):
            raise BadStreamError(f"{kind!r} is no kind of a subscription: {KIND_RULE}")
        if not 1 <= batch <= wire.MOST_READ:
            raise ValueError(f"batch is 1 to {wire.MOST_READ} messages, not {batch}")
        self._access = Access.chosen(endpoint, access)
        self.stream = stream
        self.name = name
        self.kind = kind
        self.position = 0
        """The watermark that was stored last."""
        self._unmarked: Hold | None = None
        """The hold whose connection has ended before a watermark was stored, and that watermark."""
        self._handler = handler
        self._batch = batch
        self._topics = list(topics)
        self._start, self._restart = start, restart
        self._on_restart = on_restart
        self._position = position
        self._follows = follow
        self._waits = wait
        check_callback("on_gap", on_gap)
        self._on_gap = on_gap
        self._timeout = timeout
        self._stop_asked = threading.Event()
        self._ended = threading.Event()
        self._ended.set()
        self._worker: threading.Thread | None = None
        """The thread in which it runs."""
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._restart_at: int | None = None
        """The watermark that ``restart`` stands for."""
        self._questions: Questions
        self._connection: Connection

    # ------------------------------------------------------------------ run

    def run(self) -> None:
        """Work until :meth:`stop`, SIGTERM or SIGINT, or to the end of the stream with ``follow=False``.

        Signals are caught in the main thread only: they end the work behind the current batch, and a second
        one raises KeyboardInterrupt. Raises :class:`~sluicemq.HeldError`, :class:`~sluicemq.GapError`,
        :class:`~sluicemq.BadStreamError`, and lasting refusals of the broker.
        """
        self._ended.clear()
        self._worker = threading.current_thread()
        try:
            self._connect_and_follow()
        finally:
            self._ended.set()

    def start(self) -> None:
        """Run in a thread; :meth:`close` or :meth:`join` raise the error that ended it."""
        if self._thread is None:
            thread = threading.Thread(target=self._run_in_thread, name=f"sluicemq-{self.name}", daemon=True)
            try:
                self._ended.clear()
                thread.start()
            except BaseException:  # as KeyboardInterrupt: nobody waits for what may not have begun
                self._ended.set()
                raise
            self._thread = thread

    def stop(self, timeout: float | None = None) -> bool:
        """Finish the current batch, store the watermark, release the hold; from any thread.

        Returns True once that is done; False after ``timeout`` seconds (None: without limit), and in a
        handler, behind which the work ends.
        """
        self._stop_asked.set()
        if threading.current_thread() is self._worker:
            return self._ended.is_set()
        return self._ended.wait(timeout)

    def join(self, timeout: float | None = None) -> bool:
        """Wait until it has ended, and raise the error that ended it; False after ``timeout`` seconds."""
        if self._thread is None:
            return True
        self._thread.join(timeout)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return not self._thread.is_alive()

    def close(self, timeout: float | None = None) -> None:
        """Stop, and raise the error that ended it."""
        if self.stop(timeout):
            self.join(timeout)

    def _connect_and_follow(self) -> None:
        self._questions = Questions()
        self._connection = Connection(self._access, self._questions, repeats=True)
        self._questions.attach(self._connection)
        self._connection.start()
        try:
            with StopSignals(self._stop_asked.set, raises=True).caught(self._connection):
                while not self._stop_asked.is_set():
                    if self._hold_and_follow():
                        return
        finally:
            self._connection.close()

    def _run_in_thread(self) -> None:
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001 - raised by join
            self._failure = error
            if not isinstance(error, SluiceError):
                log.warning("subscription %s of stream %s ended", self.name, self.stream, exc_info=True)

    # ------------------------------------------------------------ one hold

    def _hold_and_follow(self) -> bool:
        """Hold the subscription and work; True: the end of the stream is reached."""
        hold = self._hold()
        if hold is None:
            return True
        epoch = self._connection.epoch
        try:
            ended = self._work(self._resumed(hold, epoch), epoch)
            if self._connection.epoch == epoch:
                self._release(hold)
        except LeaseLostError:
            log.warning("subscription %s of stream %s: another has taken over", self.name, self.stream)
            return False
        except (NotAdmittedError, TimeoutError, UnavailableError) as error:
            log.warning("subscription %s of stream %s: %s", self.name, self.stream, error)
            self._stop_asked.wait(_STANDBY)
            return False
        finally:
            self._questions.held = False
            self._connection.wake()
        return ended

    def _hold(self) -> Hold | None:
        """Return a hold, waiting for it if another has the subscription; None: stopped."""
        missed = False
        while not self._stop_asked.is_set():
            try:
                found = self._ask(wire.HOLD, self.stream, self.name, self.kind, self._options())
                self.position = found["watermark"]
                self._questions.held = True
                return Hold(found["fence"], found["watermark"])
            except HeldError as error:
                if not self._waits or error.kind != self.kind:
                    raise
                log.debug("standing by: %s", error)
                self._stop_asked.wait(_STANDBY)
            except BadStreamError as error:  # names and kind are checked: the stream does not exist yet
                if not self._waits:
                    raise
                if not missed:
                    log.warning("%s. Subscription %s waits for it", error, self.name)
                missed = True
                self._stop_asked.wait(_STANDBY)
            except (NotAdmittedError, TimeoutError, UnavailableError) as error:
                log.warning("subscription %s of stream %s: %s", self.name, self.stream, error)
                self._stop_asked.wait(_STANDBY)
        return None

    def _options(self) -> dict[str, int]:
        """Return the options of a HOLD."""
        options = {"born": watermark_of(self._start, self._number_since)}
        if self._restart is not None:
            self._restart_at = options["after"] = watermark_of(self._restart, self._number_since)
        return options

    def _number_since(self, start: Start) -> int:
        """Return the number before the first message since a time."""
        with Reader(self.stream, start=start, endpoint=self._access) as reader:
            message = reader.read(self._timeout)
            return message.sequence - 1 if message else reader.newest

    def _resumed(self, hold: Hold, epoch: int) -> Hold:
        """Return where a hold begins: behind what was handled under its predecessor, if that is ours.

        Only the session that holds may store a watermark, so a batch whose connection ended meanwhile is
        marked here. Each hold and each move of the watermark raises the fence by one.
        """
        unmarked, self._unmarked = self._unmarked, None
        if unmarked and hold.fence == unmarked.fence + 1 and unmarked.watermark > hold.watermark:
            self._mark(hold, epoch, unmarked.watermark)
            return hold._replace(watermark=unmarked.watermark)
        return hold

    def _work(self, hold: Hold, epoch: int) -> bool:
        """Work under a hold; True: at the end; False: stopped, or the broker stops, or the hold has ended."""
        if self._on_restart is not None and hold.watermark == self._restart_at:
            self._again(self._on_restart, hold.fence)
        at = hold.watermark if self._position is None else self._again(self._position)
        with Reader(
            self.stream,
            start=Start.at(at + 1),
            topics=self._topics,
            follow=self._follows,
            on_gap=self._on_gap,
            endpoint=self._access,
        ) as reader:
            while (
                not self._stop_asked.is_set()
                and self._connection.takes_more
                and self._connection.epoch == epoch
            ):
                messages = reader.read_batch(self._batch, _LOOK)
                if messages:
                    self._again(self._handler, Batch(messages, hold.fence, reader.newest))
                ended = reader.ended
                if messages or ended or reader.passed - self.position >= _PASSED:
                    self._mark(hold, epoch, reader.passed)
                if ended:
                    return True
        return False

    def _again(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function until it does not raise; when this subscription stops, its error ends the hold."""
        pause = _FIRST_PAUSE
        while True:
            try:
                return function(*args)
            except Exception as error:
                complain(
                    "subscription %s of stream %s: a handler failed, next try in %.1f s",
                    *(self.name, self.stream, pause),
                )
                if self._stop_asked.wait(pause):
                    why = said(error, named=True)
                    raise UnavailableError(f"stopped while a handler failed: {why}") from error
                pause = min(_LONGEST_PAUSE, 2 * pause)

    def _mark(self, hold: Hold, epoch: int, watermark: int) -> None:
        """Store the watermark, with repeats while the hold lasts: no message should be worked on twice.

        Raises the error that ends the hold; the next holder gets the batch again then.
        """
        while watermark > self.position:
            if self._connection.epoch != epoch:
                self._unmarked = Hold(hold.fence, watermark)
                raise UnavailableError("the connection has ended, and the hold with it")
            try:
                self._ask(wire.MARK, self.stream, self.name, hold.fence, watermark)
                self.position = watermark
            except LeaseLostError:
                if self._connection.epoch == epoch:
                    raise
            except (NotAdmittedError, TimeoutError, UnavailableError) as error:
                if not self._connection.greeted or self._stop_asked.is_set():
                    self._unmarked = Hold(hold.fence, watermark)
                    raise
                log.warning("subscription %s of stream %s: %s", self.name, self.stream, error)
                self._stop_asked.wait(_STANDBY)

    def _release(self, hold: Hold) -> None:
        self._ask(wire.FREE, self.stream, self.name, hold.fence)

    def _ask(self, verb: bytes, *fields: Any) -> Any:
        return self._questions.ask(verb, *fields, timeout=self._timeout)


def _check_names(*names: str) -> None:
    for name in names:
        if not is_queue_name(name):
            raise BadStreamError(f"{name!r} is no name of a stream or a subscription: {QUEUE_NAME_RULE}")
