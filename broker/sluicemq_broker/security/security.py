"""Security of a broker, put together: its principals and the guards of its doors."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from sluicemq.protocol.keys import encode
from sluicemq.protocol.names import LONGEST_NAME
from sluicemq.protocol.permissions import Action
from sluicemq_broker.config import (
    DeviceSettings,
    PrincipalSettings,
    SecuritySettings,
    anonymous_of,
    rule_of,
)
from sluicemq_broker.runtime import Count, Counters
from sluicemq_broker.security.acts import Door
from sluicemq_broker.security.audit import Audit
from sluicemq_broker.security.authorize import Caller, Principal
from sluicemq_broker.security.guard import DoorGuard
from sluicemq_broker.security.logins import Logins
from sluicemq_broker.security.passwords import LONGEST_PASSWORD, Passwords
from sluicemq_broker.security.principals import Principals
from sluicemq_devices.hub import Notices
from sluicemq_devices.sockets import Endpoint

log = logging.getLogger("broker.security")

#: A door as the configuration has it: its endpoint, and its device.
Place = tuple[Endpoint, DeviceSettings | None]

_DEFAULT: Final = SecuritySettings()


class Security:
    """The principals of a broker, and the guards of its doors."""

    def __init__(
        self,
        counters: Counters,
        settings: SecuritySettings = _DEFAULT,
        principals: Mapping[str, PrincipalSettings] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``now``: the time that all brokers share."""
        self._counters = counters
        self.audit = Audit(counters)
        self._lines: dict[str, Notices] = {}
        self._settings = settings
        self.principals = Principals()
        self.principals.use_file(principals or {})
        self.passwords = Passwords()
        self.logins = Logins(now)
        """Logins of browsers."""
        self.anonymous = Principal("", anonymous_of(settings))
        """The principal of HTTP requests that show no token."""
        self._guards: list[tuple[DoorGuard, Place]] = []

    def guard(self, end: Endpoint, device: DeviceSettings | None = None) -> DoorGuard:
        """Return the guard of a door; ``end``: its endpoint as the configuration has it."""
        name = f"{device.kind}.{device.stream or device.queue}" if device else Door.SMQ
        guard = DoorGuard(self.principals, self.passwords, self.refused, self.audit, name)
        self._guards.append((guard, (end, device)))
        self._instruct(guard, (end, device))
        return guard

    def caller(self, peer: str) -> Caller:
        """Return the caller for an anonymous request from this address."""
        return Caller(self.anonymous, peer, refused=self.refused)

    def named(self, name: str) -> Caller | None:
        """Return the principal of this name as a caller that has shown nothing; None: there is none."""
        principal = self.principals.named(name)
        return Caller(principal, refused=self.refused) if principal else None

    def by_token(self, token: str, peer: str) -> Caller | None:
        """Return the caller with this token; None: no principal has it. Never waits."""
        shown = self.principals.by_token(token)
        return Caller(shown.principal, peer, shown.key, self.refused) if shown else None

    def by_password(self, user: str, password: str, peer: str) -> Caller | None:
        """Return the caller with this name and password, None if they are not right; waits for a thread.

        Raises :class:`~sluicemq_broker.security.passwords.Busy` if too many wait.
        """
        login = self.principals.login(user)
        fits = self.passwords.check(user, login and login.hash, password[: LONGEST_PASSWORD + 1], peer)
        caller = Caller(login.principal, peer, login.key, self.refused) if login and fits else None
        return caller if caller and caller.is_known else None

    @property
    def has_logins(self) -> bool:
        """True if any principal has a token or a password."""
        return self.principals.has_logins

    @property
    def strangers_operate(self) -> bool:
        """True if anonymous clients of the library's door may change principals."""
        return any(guard.strangers_operate for guard, (_end, device) in self._guards if device is None)

    def reconfigure(
        self,
        settings: SecuritySettings,
        principals: Mapping[str, PrincipalSettings],
        doors: Iterable[tuple[Place, Place]] = (),
    ) -> None:
        """Use other settings: new handshakes meet the new keys, open connections the new permissions.

        ``doors``: each door as the configuration had it, and as it has it now.
        """
        former, self._settings = self._settings, settings
        if settings.secret_key_file != former.secret_key_file:
            self.announce()
        self.anonymous.change(anonymous_of(settings))
        self.principals.use_file(principals)
        now = {_identity(before): after for before, after in doors}
        self._guards = [(guard, now.get(_identity(place), place)) for guard, place in self._guards]
        for guard in self._guards:
            self._instruct(*guard)

    def refused(self, caller: Caller, action: Action, name: str) -> None:
        """Count a refusal, and log it, one line a second for each principal."""
        who = caller.name or "an anonymous client"
        self._counters.add(Count.FORBIDDEN)
        self._lines_of(caller.name).notice(
            Count.FORBIDDEN, f"{who} from {caller.peer}: {action} {name[:LONGEST_NAME]}".rstrip()
        )

    def say_rest(self) -> None:
        """Log the refusals that are counted and not logged yet; called at the end."""
        for lines in self._lines.values():
            lines.say_rest()

    def _lines_of(self, name: str) -> Notices:
        """Return what logs the refusals of one principal: those of others can't hide them."""
        lines = self._lines.get(name)
        if lines is None:
            # Principals whose refusals are logged apart from those of others
            if len(self._lines) >= 1000:
                self._lines.pop(next(iter(self._lines))).say_rest()
            lines = self._lines[name] = Notices(log)
        return lines

    def announce(self) -> None:
        """Log the broker's public key, which clients need."""
        file = self._settings.secret_key_file
        if file:
            log.info("clients with a key need this broker's: server_key = %s", encode(file.keys.public))

    def _instruct(self, guard: DoorGuard, place: Place) -> None:
        settings = self._settings
        keys = settings.secret_key_file.keys if settings.secret_key_file else None
        guard.use(rule_of(settings, *place), keys, allow_plain=settings.allow_plain)


def _identity(place: Place) -> tuple[int, int]:
    """Return what tells two doors apart, also those of one address: these objects of the configuration."""
    end, device = place
    return id(end), id(device)
