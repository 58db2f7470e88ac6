"""The guard of a door: who gets in by what it shows, as whom, and why others don't."""

from pathlib import Path
from typing import Any

import pytest
from argon2 import PasswordHasher
from gevent.event import AsyncResult, Event
from gevent.threadpool import ThreadPool

from sluicemq.protocol.keys import KeyPair, encode, key_id
from sluicemq.protocol.permissions import Action, Permissions
from sluicemq_broker.config import (
    DeviceSettings,
    Door,
    DoorSettings,
    KeyFile,
    PrincipalSettings,
    Secret,
    SecuritySettings,
)
from sluicemq_broker.runtime import Counters
from sluicemq_broker.security import Caller, DoorGuard, Passwords, Security
from sluicemq_devices.sockets import Endpoint, parse_endpoint
from sluicemq_devices.zmtp import CURVE, NULL, PLAIN, Credentials

KEY, STRANGE = bytes(range(32)), bytes(range(32, 64))
KEYS = KeyFile(Path("broker.key"), KeyPair(bytes([1] * 32), bytes([2] * 32)))
HASH = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("right")
MAILER = PrincipalSettings(
    keys=(encode(KEY),), password=Secret(HASH), permissions=Permissions.read("push=mail")
)
RIGHT = Credentials(PLAIN, user="mailer", password="right")  # noqa: S106 - of a test
SETTINGS = SecuritySettings(
    mechanism=("null", "plain", "curve"), secret_key_file=KEYS, anonymous=Permissions.all()
)
END = parse_endpoint("tcp://127.0.0.1:5550")
HERE, ELSEWHERE = "tcp://127.0.0.1:40000", "tcp://192.0.2.7:40000"


def secured(**settings: Any) -> Security:
    settings = {"mechanism": ("null", "plain", "curve"), "secret_key_file": KEYS, **settings}
    return Security(Counters(), SecuritySettings(**settings), {"mailer": MAILER})


def admitted(guard: DoorGuard, credentials: Credentials, peer: str = HERE) -> tuple[Caller | None, str]:
    """Return what the guard decides."""
    answer: AsyncResult[tuple[Caller | None, str]] = AsyncResult()
    guard.admit(credentials, peer, lambda who, why, **_: answer.set((who, why)))
    decision: tuple[Caller | None, str] = answer.get(timeout=30)
    return decision


def test_without_settings_everybody_may_do_everything() -> None:
    """A door with NULL alone, as in the README."""
    guard = Security(Counters()).guard(END)
    caller, why = admitted(guard, Credentials(NULL))
    assert why == ""
    assert caller is not None
    assert (caller.name, caller.peer, caller.is_known) == ("", HERE, True)
    assert caller.may(Action.OPERATE)
    assert guard.mechanisms == {NULL}


def test_a_key_stands_for_its_principal() -> None:
    """The caller knows the id of the key, so that its connections end with it."""
    guard = secured().guard(END)
    caller, why = admitted(guard, Credentials(CURVE, key=KEY))
    assert why == ""
    assert caller is not None
    assert (caller.name, caller.key) == ("mailer", key_id(KEY))
    assert caller.may(Action.PUSH, "mail")
    assert not caller.may(Action.WORK, "mail")
    assert guard.secret_key == KEYS.keys.secret


def test_a_key_of_nobody_does_not_get_in_and_the_log_names_it() -> None:
    """The operator finds the key in the log, and can add it."""
    caller, why = admitted(secured().guard(END), Credentials(CURVE, key=STRANGE))
    assert caller is None
    assert why == f"no principal has its key {encode(STRANGE)} ({key_id(STRANGE)})"


def test_strangers_get_in_as_anonymous_clients_where_these_may_do_something() -> None:
    """Without a key, and with one that nobody has."""
    guard = secured(anonymous=Permissions.read("read=public")).guard(END)
    for credentials in (Credentials(NULL), Credentials(CURVE, key=STRANGE)):
        caller, why = admitted(guard, credentials)
        assert why == ""
        assert caller is not None
        assert (caller.name, caller.may(Action.READ, "public"), caller.may(Action.READ, "x")) == (
            "",
            True,
            False,
        )


def test_nobody_gets_in_without_a_key_where_anonymous_clients_may_do_nothing() -> None:
    """So it is by default, once a door speaks more than NULL."""
    caller, why = admitted(secured().guard(END), Credentials(NULL))
    assert (caller, why) == (None, "it shows no key, which this door requires")


def test_a_mechanism_that_the_door_does_not_speak_is_refused() -> None:
    """Even if the peer has come so far: the guard does not rely on the handshake."""
    caller, why = admitted(secured(mechanism=("curve",)).guard(END), Credentials(NULL))
    assert (caller, why) == (None, "it speaks NULL, this door CURVE")


@pytest.mark.parametrize(
    ("user", "password", "gets_in"),
    [("mailer", "right", True), ("mailer", "wrong", False), ("s3cret", "right", False), ("", "", False)],
)
def test_a_user_gets_in_with_the_right_password(user: str, password: str, *, gets_in: bool) -> None:
    """A wrong password and a wrong name are refused alike; the log has only names that are known."""
    guard = secured(anonymous=Permissions.all()).guard(END)
    for _ in range(2):  # the second time a right one is remembered
        caller, why = admitted(guard, Credentials(PLAIN, user=user, password=password))
        assert (caller is not None) == gets_in
        shown = "'mailer'" if user == "mailer" else "no user of that name has one"
        assert why == ("" if gets_in else f"the user, or the password, is not right: {shown}")


@pytest.mark.parametrize(
    ("peer", "allow_plain", "gets_in"),
    [
        (HERE, False, True),
        ("ipc", False, True),
        ("tcp://[::1]:7", False, True),
        ("tcp://[::ffff:127.0.0.1]:7", False, True),
        (ELSEWHERE, False, False),
        ("tcp://[2001:db8::1]:7", False, False),
        (ELSEWHERE, True, True),
    ],
)
def test_passwords_come_from_this_machine_unless_set(peer: str, *, allow_plain: bool, gets_in: bool) -> None:
    """A password in clear text is no secret on a network."""
    guard = secured(allow_plain=allow_plain).guard(END)
    caller, why = admitted(guard, RIGHT, peer)
    assert (caller is not None) == gets_in
    assert gets_in or "it comes from another machine" in why


def test_a_principal_that_is_removed_while_its_password_is_checked_does_not_get_in() -> None:
    """The check takes a while, and the principal may be gone behind it."""
    security = secured()
    threads = SlowThreads()
    security.passwords = Passwords(threads)
    answer: AsyncResult[tuple[Caller | None, str]] = AsyncResult()
    security.guard(END).admit(RIGHT, HERE, lambda who, why, **_: answer.set((who, why)))
    threads.begun.wait(30)
    security.reconfigure(SecuritySettings(), {})
    threads.removed.set()
    assert answer.get(timeout=30)[0] is None


class SlowThreads(ThreadPool):  # type: ignore[misc]
    """Threads in which a password, which is right, is checked until its principal is ``removed``."""

    def __init__(self) -> None:
        super().__init__(1)
        self.begun, self.removed = Event(), Event()

    def apply(self, *_work: object) -> tuple[bool, float]:
        self.begun.set()
        self.removed.wait(30)
        return True, 0.0


def test_a_device_has_its_own_rule() -> None:
    """Its mechanisms and what anonymous clients may do there."""
    device = DeviceSettings(kind="queue", mechanism=("null",), anonymous=Permissions.read("push=a"))
    guard = secured().guard(END, device)
    caller, _why = admitted(guard, Credentials(NULL))
    assert caller is not None
    assert caller.may(Action.PUSH, "a")
    assert guard.mechanisms == {NULL}


def test_other_settings_hold_for_open_connections_and_new_handshakes() -> None:
    """SIGHUP: permissions of anonymous clients, principals, and the broker's own keys."""
    security = secured(anonymous=Permissions.all())
    guard = security.guard(END)
    stranger, _ = admitted(guard, Credentials(NULL))
    mailer, _ = admitted(guard, Credentials(CURVE, key=KEY))
    assert stranger is not None
    assert mailer is not None

    other = KeyFile(Path("broker.key"), KeyPair(bytes([3] * 32), bytes([4] * 32)))
    settings = SecuritySettings(
        mechanism=("null", "plain", "curve"), secret_key_file=other, anonymous=Permissions.read("read")
    )
    security.reconfigure(settings, {})

    assert guard.secret_key == bytes([4] * 32)
    assert (stranger.may(Action.READ, "x"), stranger.may(Action.PUSH, "x")) == (True, False)
    assert stranger.is_known
    assert not mailer.is_known
    security.reconfigure(SecuritySettings(mechanism=("curve",), secret_key_file=other), {})
    assert not stranger.is_known, "its connection ends"


def test_each_door_takes_what_it_says_itself_after_a_change() -> None:
    """SIGHUP: connections end whose mechanism their door speaks no more, also those with a key."""
    security = Security(Counters(), SETTINGS, {"mailer": MAILER})
    devices = [DeviceSettings(kind="queue", frontends=(END,)) for _ in "12"]
    guards = [security.guard(END, device) for device in devices]
    callers = [caller for guard in guards if (caller := admitted(guard, Credentials(CURVE, key=KEY))[0])]
    before: list[tuple[Endpoint, DeviceSettings | None]] = [(END, device) for device in devices]
    closed = DeviceSettings(kind="queue", frontends=(END,), mechanism=("null",), anonymous=Permissions())
    security.reconfigure(SETTINGS, {"mailer": MAILER}, zip(before, [(END, closed), before[1]], strict=True))
    assert [guard.mechanisms for guard in guards] == [{NULL}, {NULL, PLAIN, CURVE}]
    assert [caller.is_known for caller in callers] == [False, True]
    assert admitted(guards[0], Credentials(NULL))[0] is None
    assert admitted(guards[1], Credentials(NULL))[0] is not None


def test_a_connection_to_a_server_ends_when_the_door_names_another_key() -> None:
    """SIGHUP: ``server_key`` of a door that connects; the socket with the former key is another one now."""
    ends = [Door(END.address, bind=False, settings=DoorSettings(endpoint=END, server_key=encode(key)))
            for key in (KEY, STRANGE)]  # fmt: skip
    security = Security(Counters(), SETTINGS)
    guard = security.guard(ends[0])
    server, _why = admitted(guard, Credentials(CURVE, key=KEY))
    assert server is not None
    assert server.is_known
    security.reconfigure(SETTINGS, {}, [((ends[0], None), (ends[1], None))])
    assert guard.server_key == STRANGE
    assert not server.is_known


def test_http_asks_for_tokens_and_passwords() -> None:
    """By the token alone, or by name and password."""
    token = "sha256:" + "d2f4b1a7" * 8
    security = Security(
        Counters(),
        SecuritySettings(),
        {"mailer": MAILER, "reader": PrincipalSettings(tokens=(token,), permissions=Permissions())},
    )
    caller = security.by_password("mailer", "right", ELSEWHERE)
    assert caller is not None
    assert (caller.name, caller.peer, caller.is_known) == ("mailer", ELSEWHERE, True)
    assert security.by_password("mailer", "wrong", HERE) is None
    assert security.by_password("nobody", "right", HERE) is None
    assert security.by_token("right", HERE) is None
    assert security.has_logins
