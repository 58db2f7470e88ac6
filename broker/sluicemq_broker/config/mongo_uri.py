"""The URI of MongoDB, which never shows a secret.

The grammar is stricter than the driver's: the driver reads ``mongodb://bob:12/34@host`` as port 12 of a host
``bob`` and names these in the log, half a password. Errors name place and number of what is wrong, and never
quote it.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self
from urllib.parse import unquote, unquote_plus

_SCHEMES: Final = ("mongodb://", "mongodb+srv://")
EXPECTED: Final = "a URI that begins with mongodb:// or mongodb+srv://"
_ESCAPED: Final = (
    "in user and password the characters @ : / ? % are written %40 %3A %2F %3F %25, elsewhere @ is %40"
)
_HOST: Final = re.compile(r"(?:[\w.%-]+|\[[0-9A-Fa-f:.%\w]+\])(?::([0-9]{1,5}))?")
_WORD: Final = re.compile(r"[A-Za-z0-9]{1,40}")
_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_LAST_PORT: Final = 65535
_FOREIGN: Final = re.compile("(?<!tcp)(?<!ipc)://")

#: Options whose values may be shown, in lower case. Other values are hidden, and names that the driver does
#: not know, too.
_HARMLESS: Final = frozenset({
    *("replicaset", "directconnection", "loadbalanced", "authsource", "authmechanism", "appname"),
    *("tls", "ssl", "tlsinsecure", "tlsallowinvalidcertificates", "tlsallowinvalidhostnames"),
    *("tlscafile", "tlscrlfile", "tlscertificatekeyfile", "tlsdisableocspendpointcheck"),
    *("compressors", "zlibcompressionlevel", "srvservicename", "srvmaxhosts"),
    *("maxpoolsize", "minpoolsize", "maxidletimems", "maxconnecting", "waitqueuetimeoutms"),
    *("connecttimeoutms", "sockettimeoutms", "serverselectiontimeoutms", "timeoutms", "heartbeatfrequencyms"),
    *("localthresholdms", "servermonitoringmode", "uuidrepresentation", "retrywrites", "retryreads"),
    *("w", "wtimeout", "wtimeoutms", "journal", "j", "fsync"),
    *("readpreference", "maxstalenessseconds", "readconcernlevel"),
})  # fmt: skip
#: Options that say who logs in, and how.
LOGIN_OPTIONS: Final = frozenset({"authsource", "authmechanism", "authmechanismproperties"})
_HIDDEN: Final = frozenset({"authmechanismproperties", "tlscertificatekeyfilepassword", "readpreferencetags"})


class Parts(NamedTuple):
    """A URI in parts, each as it was written; None where it is missing."""

    scheme: str
    user: str | None
    password: str | None
    hosts: str
    database: str | None
    options: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, repr=False)
class MongoUri:
    """A URI: :attr:`text` is for the driver; ``str()`` of it shows no secret."""

    text: str = field(repr=False)
    parts: Parts

    @classmethod
    def read(cls, text: str) -> Self:
        """Read a URI. Raises ValueError with the words after "expected", and no part of the text."""
        return cls(text, _parsed(text))

    @property
    def secrets(self) -> frozenset[str]:
        """Texts that must not be shown: password and hidden values, raw and decoded, and their parts."""
        hidden = [value for name, value in self.parts.options if name.lower() not in _HARMLESS]
        pieces = [piece for value in hidden for piece in re.split("[,:]", unquote(value))]
        whole = [self.parts.password or "", *hidden, *pieces]
        return frozenset(form for text in whole for form in (text, unquote(text), unquote_plus(text)) if form)

    def shown_option(self, name: str, value: str) -> str:
        """Return an option as an error names it.

        A name that nobody knows may be a part of a secret, if one stands in an option before it.
        """
        has_secret = any(option.lower() in _HIDDEN for option, _value in self.parts.options)
        shown = name if not has_secret and _WORD.fullmatch(name) else _shown_name(name)
        return f"{shown}={_shown_value(name, value)}"

    @property
    def login(self) -> str:
        """A URI with this login and another host, which the driver looks up in no DNS."""
        parts = self.parts
        password = "" if parts.password is None else f":{parts.password}"
        who = "" if parts.user is None else f"{parts.user}{password}@"
        options = "&".join(
            f"{name}={value}" for name, value in parts.options if name.lower() in LOGIN_OPTIONS
        )
        return f"mongodb://{who}localhost/{parts.database or ''}?{options}"

    def differs_in_login_only(self, other: object) -> bool:
        """Return True if both URIs lead to one MongoDB, with a login each."""
        return isinstance(other, MongoUri) and _without_login(self.parts) == _without_login(other.parts)

    def __str__(self) -> str:
        scheme, user, password, hosts, database, options = self.parts
        who = "" if user is None else f"{user}{'' if password is None else ':***'}@"
        path = "" if database is None else f"/{database}"
        query = "&".join(f"{_shown_name(name)}={_shown_value(name, value)}" for name, value in options)
        return f"{scheme}{who}{hosts}{path}{'?' if query else ''}{query}"

    def __repr__(self) -> str:
        return f"MongoUri('{self}')"


def _without_login(parts: Parts) -> tuple[object, ...]:
    rest = tuple(option for option in parts.options if option[0].lower() not in LOGIN_OPTIONS)
    return parts.scheme, parts.user is None, parts.hosts, parts.database, rest


def may_hold_a_secret(value: object) -> bool:
    """Return True if a refused value may be a URI with a password, mistyped or in the wrong place."""
    text = str(value)
    return "@" in text[1:] or "mong" in text.lower() or bool(_FOREIGN.search(text))


def _parsed(text: str) -> Parts:
    scheme = next((scheme for scheme in _SCHEMES if text.startswith(scheme)), None)
    if scheme is None:
        near = difflib.get_close_matches(text.partition("://")[0] + "://", _SCHEMES, 1, 0.8)
        raise ValueError(EXPECTED + (f"; did you mean {near[0]}?" if near else ""))
    if any(character.isspace() or not character.isprintable() for character in text):
        raise ValueError("a URI without blanks and line ends: write %20 and the like")
    head, mark, query = text.removeprefix(scheme).partition("?")
    authority, slash, database = head.partition("/")
    who, at, hosts = authority.rpartition("@")
    user, colon, password = who.partition(":")
    if (
        "@" in who
        or "@" in database
        or "@" in query
        or ":" in password
        or "/" in database
        or _PERCENT.search(who)
    ):
        raise ValueError(f"a URI such as mongodb://USER:PASSWORD@HOST:27017/: {_ESCAPED}")
    if at and not user:
        raise ValueError("a user before the @")
    _check_hosts(hosts)
    return Parts(
        scheme,
        user if at else None,
        password if colon else None,
        hosts,
        database if slash else None,
        _options(query) if mark else (),
    )


def _check_hosts(hosts: str) -> None:
    for number, host in enumerate(hosts.split(","), 1):
        found = _HOST.fullmatch(host)
        if not found or (found[1] is not None and not 1 <= int(found[1]) <= _LAST_PORT):
            raise ValueError(
                f"HOST or HOST:PORT, a port from 1 to {_LAST_PORT}, as host no. {number}; {_ESCAPED}"
            )


def _options(query: str) -> tuple[tuple[str, str], ...]:
    pairs = [option.partition("=") for option in re.split("[&;]", query) if option]
    for number, (name, equals, _value) in enumerate(pairs, 1):
        if not name or not equals:
            raise ValueError(
                f"NAME=VALUE as option no. {number} of the URI; in a value & ; = are written %26 %3B %3D"
            )
    return tuple((name, value) for name, _equals, value in pairs)


def _shown_name(name: str) -> str:
    return name if name.lower() in _HARMLESS | _HIDDEN else "***"


def _shown_value(name: str, value: str) -> str:
    return value if name.lower() in _HARMLESS else "***"
