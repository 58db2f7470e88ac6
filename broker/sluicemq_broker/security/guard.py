"""The guard of the broker's doors: makes a caller of each peer that gets in."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from functools import partial
from typing import Final

import gevent

from sluicemq.protocol.errors import UnavailableError
from sluicemq.protocol.keys import KeyPair, encode, key_id, read_key
from sluicemq.protocol.permissions import Action, Permissions
from sluicemq_broker.config import DoorRule
from sluicemq_broker.security.acts import address_of
from sluicemq_broker.security.audit import Audit
from sluicemq_broker.security.authorize import Caller, Principal
from sluicemq_broker.security.passwords import Passwords
from sluicemq_broker.security.principals import Principals
from sluicemq_devices.sockets import Decide, Guard, host_and_port
from sluicemq_devices.zmtp import CURVE, NULL, PLAIN, Credentials

#: Code of a login that is refused, in the audit; the client hears what its mechanism has for that.
NOT_ADMITTED: Final = "NOT_ADMITTED"


class DoorGuard(Guard):
    """The rule of one door, as :meth:`use` says; the rule of a running broker may change."""

    def __init__(
        self,
        principals: Principals,
        passwords: Passwords,
        refused: Callable[[Caller, Action, str], None],
        audit: Audit,
        door: str,
    ) -> None:
        """``door``: its name in the audit."""
        self._audit = audit
        self._door = door
        self._principals = principals
        self._passwords = passwords
        self._refused = refused
        self._anonymous = Principal("", Permissions())
        self._allow_plain = False

    def use(self, rule: DoorRule, keys: KeyPair | None, *, allow_plain: bool) -> None:
        """Follow another rule, also for open connections: those that it would not let in must end."""
        self.mechanisms = frozenset(mechanism.upper() for mechanism in rule.mechanisms)
        self.secret_key = keys.secret if keys else b""
        self.server_key = read_key(rule.server_key) if rule.server_key and CURVE in self.mechanisms else b""
        self._allow_plain = allow_plain
        self._anonymous.change(rule.anonymous)
        self._anonymous.exists = bool(rule.anonymous)  # connections of a door that lets them in no more end

    @property
    def strangers_operate(self) -> bool:
        """True if anonymous clients of this door may change principals."""
        return self._anonymous.may(Action.OPERATE)

    def admit(self, credentials: Credentials, peer: str, decide: Decide) -> None:
        """Decide who a peer is, by what it shows; a password is checked in a thread."""
        if credentials.mechanism not in self.mechanisms:
            decide(
                None, f"it speaks {credentials.mechanism}, this door {' or '.join(sorted(self.mechanisms))}"
            )
        elif credentials.mechanism == CURVE:
            self._admit_key(credentials.key, peer, self._noting(peer, "", decide))
        elif credentials.mechanism == PLAIN:
            self._admit_user(credentials, peer, self._noting(peer, credentials.user, decide))
        else:
            self._admit_anonymous(NULL, peer, decide, "it shows no key, which this door requires")

    def _noting(self, peer: str, user: str, decide: Decide) -> Decide:
        """Return the function that decides, and counts the login in the audit."""

        def noting(who: Caller | None, why: str, *, for_now: bool = False) -> None:
            if who is None:
                known = user if self._principals.login(user) else ""  # a password may stand in its place
                self._audit.failed_login(
                    peer, self._door, known, UnavailableError.code if for_now else NOT_ADMITTED
                )
            elif who.key:
                self._audit.login(who, self._door)
            decide(who, why, for_now=for_now)

        return noting

    def _admit_key(self, key: bytes, peer: str, decide: Decide) -> None:
        shown = self._principals.by_public_key(key)
        if shown:
            decide(self._caller(shown.principal, peer, CURVE, shown.key), "")
        else:
            otherwise = f"no principal has its key {encode(key)} ({key_id(key)})"
            self._admit_anonymous(CURVE, peer, decide, otherwise)

    def _admit_anonymous(self, mechanism: str, peer: str, decide: Decide, otherwise: str) -> None:
        if self._anonymous.permissions:
            decide(self._caller(self._anonymous, peer, mechanism), "")
        else:
            decide(None, otherwise)

    def _admit_user(self, credentials: Credentials, peer: str, decide: Decide) -> None:
        if not (self._allow_plain or is_here(peer)):
            decide(
                None,
                "it comes from another machine, and its password came in clear text: allow_plain is false",
            )
            return
        login = self._principals.login(credentials.user)
        if login and self._passwords.remembers(login.hash, credentials.password):
            decide(self._caller(login.principal, peer, PLAIN, login.key), "")
        else:
            gevent.spawn(self._check, credentials, peer, decide)

    def _check(self, credentials: Credentials, peer: str, decide: Decide) -> None:
        login = self._principals.login(credentials.user)
        try:
            fits = self._passwords.check(
                credentials.user, login and login.hash, credentials.password, address_of(peer)
            )
        except UnavailableError as error:
            decide(None, str(error), for_now=True)
            return
        caller = self._caller(login.principal, peer, PLAIN, login.key) if login and fits else None
        if caller and caller.is_known:  # it may have been removed meanwhile
            decide(caller, "")
        else:
            known = repr(credentials.user) if login else "no user of that name has one"
            # A password may have been typed in place of the user
            decide(None, f"the user, or the password, is not right: {known}")

    def _caller(self, principal: Principal, peer: str, mechanism: str, key: str = "") -> Caller:
        return Caller(principal, peer, key, self._refused, partial(self._holds, mechanism, self.server_key))

    def _holds(self, mechanism: str, server_key: bytes) -> bool:
        """Return whether a connection of this mechanism, to this server, would get in now, too."""
        return mechanism in self.mechanisms and server_key == self.server_key


def is_here(peer: str) -> bool:
    """Return whether a peer is on this machine, by its address."""
    if not peer.startswith("tcp://"):
        return True
    try:
        address = ipaddress.ip_address(host_and_port(peer)[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
