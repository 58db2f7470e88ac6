"""Settings of security: mechanisms, keys and principals of the file, and the rule of each door."""

from pathlib import Path

import pytest

from sluicemq.protocol.keys import KeyPair, encode, write_key_file
from sluicemq.protocol.permissions import Action, Permissions
from sluicemq_broker.config import (
    Config,
    ConfigError,
    Door,
    DoorRule,
    as_json,
    changes,
    describe,
    load,
    rule_of,
    taken_over,
)

KEY, OTHER_KEY = encode(bytes(range(32))), encode(bytes(range(32, 64)))
HASH = "$argon2id$v=19$m=65536,t=3,p=4$c29tZXNhbHQxMjM0NTY$" + "A" * 43
TOKEN = "sha256:" + "ab" * 32


def test_nothing_is_needed_without_a_table(tmp_path: Path) -> None:
    """Without [security] every door speaks NULL and lets everybody do everything."""
    config = read(tmp_path, "")
    assert rules_of(config) == {DoorRule(("null",), Permissions.all(), insecure=False, server_key=None)}


def test_a_door_goes_over_its_device_and_a_device_over_the_table(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        f"""
        [broker]
        endpoint = {{ endpoint = "tcp://127.0.0.1:7000", mechanism = ["null"], anonymous = "read" }}
        [security]
        mechanism = "curve"
        secret_key_file = "{keys(tmp_path)}"
        [[devices]]
        kind = "streamer"
        mechanism = ["curve", "null"]
        anonymous = "push=mail"
        frontend = [
            "tcp://127.0.0.1:7001",
            {{ endpoint = "tcp://*:7002", insecure = true, anonymous = "none" }},
        ]
        backend = {{ endpoint = ">tcp://127.0.0.1:7003", mechanism = "curve", server_key = "{KEY}" }}
        """,
    )
    device = config.devices[0]

    assert rule_of(config.security, config.broker.endpoint) == DoorRule(
        ("null",), Permissions.read("read"), insecure=False, server_key=None
    )
    push = Permissions({Action.PUSH: ["mail"]})
    assert [rule_of(config.security, end, device) for end in device.ends] == [
        DoorRule(("null", "curve"), push, insecure=False, server_key=None),
        DoorRule(("null", "curve"), Permissions(), insecure=True, server_key=None),
        DoorRule(("curve",), Permissions.all(), insecure=False, server_key=KEY),  # the file names its key
    ]


@pytest.mark.parametrize(
    ("mechanism", "of_the_door", "permissions"),
    [
        ("null", "null", Permissions.all()),
        ("null", "curve", Permissions()),
        ("curve", "curve", Permissions()),
        ("plain", "plain", Permissions()),
    ],
)
def test_anonymous_clients_may_do_all_only_where_nothing_but_null_is_spoken(
    tmp_path: Path, mechanism: str, of_the_door: str, permissions: Permissions
) -> None:
    """A door that is given a mechanism lets nobody in without a key, unless that is said."""
    config = read(
        tmp_path,
        f"""
        [broker]
        endpoint = {{ endpoint = "tcp://127.0.0.1:7000", mechanism = "{of_the_door}" }}
        [security]
        mechanism = "{mechanism}"
        secret_key_file = "{keys(tmp_path)}"
        """,
    )
    assert rule_of(config.security, config.broker.endpoint).anonymous == permissions


def test_principals_have_keys_passwords_tokens_and_permissions(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        f"""
        [security.principals.mailer]
        keys = ["{KEY}", "{OTHER_KEY}"]
        password = "{HASH}"
        tokens = "{TOKEN}"
        permissions = {{ push = ["mail.*"], operate = true }}
        tenant = "acme"
        max_rate = 100
        max_bytes_rate = 1000000
        """,
    )
    mailer = config.principals["mailer"]

    assert mailer.keys == (KEY, OTHER_KEY)
    assert mailer.password is not None
    assert mailer.password.text == HASH
    assert mailer.tokens == (TOKEN,)
    assert mailer.permissions == Permissions.read("push=mail.* operate")
    assert (mailer.tenant, mailer.max_rate, mailer.max_bytes_rate) == ("acme", 100, 1_000_000)


def test_what_is_shown_can_be_read_back_but_for_hashes_of_passwords(tmp_path: Path) -> None:
    toml = f"""
        [security]
        mechanism = ["null", "curve"]
        secret_key_file = "{keys(tmp_path)}"
        anonymous = "read=public.*"
        [security.principals.mailer]
        keys = "{KEY}"
        permissions = "push=mail.*"
        [[devices]]
        kind = "streamer"
        frontend = {{ endpoint = "tcp://*:7002", insecure = true, anonymous = "none" }}
        """
    config = read(tmp_path, toml)
    with_password = read(
        tmp_path, toml + f'[security.principals.b]\npassword = "{HASH}"\npermissions = "all"'
    )

    shown = describe(config)
    assert read(tmp_path, shown) == config
    assert as_json(config)["security"]["principals"]["mailer"]["permissions"] == "push=mail.*"
    assert as_json(config)["devices"][0]["frontend"][0]["anonymous"] == "none"
    assert HASH not in describe(with_password) + str(as_json(with_password)) + repr(with_password)


@pytest.mark.parametrize(
    ("toml", "complaint"),
    [
        ('[security]\nmechanism = "curv"', "[security] mechanism: expected null, plain, curve, or a list"),
        ("[security]\nmechanism = []", "[security] mechanism: expected null, plain, curve"),
        ('[security]\nmechanism = "curve"', "[broker]: tcp://127.0.0.1:5550: curve needs secret_key_file"),
        ('[security]\nsecret_key_file = "/nowhere"', "[security] secret_key_file: expected a key file: "),
        ('[security]\nanonymus = "all"', "[security]: anonymus: unknown key; did you mean anonymous?"),
        ('[security]\nanonymous = "fly"', "[security] anonymous: expected"),
        ("[security]\nprincipals = 3", "security.principals: expected tables, [security.principals.NAME]"),
        ("[security.principals.a]\nkeys = []", "[security.principals.a]: permissions is missing"),
        (
            '[security.principals."a b"]\npermissions = "all"',
            "[security.principals.a b]: expected a principal's name",
        ),
        (
            '[security.principals.http_token]\npermissions = "all"',
            "and, between them, single full stops, but not http_token",
        ),
        (
            (
                f'[security.principals.a]\nkeys = "{KEY}"\npermissions = "all"\n'
                f'[security.principals.b]\nkeys = "{KEY}"\npermissions = "all"'
            ),
            f"a and b have one key: {KEY}",
        ),
        (
            '[broker]\nhost = "0.0.0.0"\n[security]\nmechanism = "plain"',
            "[broker]: tcp://0.0.0.0:5550: plain sends passwords in clear text",
        ),
        (
            '[[devices]]\nkind = "queue"\nfrontend = { endpont = "tcp://*:1" }',
            "[[devices]] no. 1 frontend: expected a door: endpont: unknown key; did you mean endpoint?",
        ),
        (
            '[[devices]]\nkind = "queue"\nfrontend = { endpoint = "tcp://*:1", mechanism = "x" }',
            "[[devices]] no. 1 frontend: expected a door with mechanism = null, plain, curve",
        ),
        (
            '[[devices]]\nkind = "queue"\nfrontend = { mechanism = "null" }',
            "[[devices]] no. 1 frontend: expected a door with its endpoint",
        ),
        (
            (
                '[security]\nmechanism = "plain"\n'
                '[broker]\nendpoint = { endpoint = "tcp://127.0.0.1:1", mechanism = "null" }'
            ),
            "[broker]: tcp://127.0.0.1:1: nobody gets in here",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, toml: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, toml)
    assert complaint in str(refused.value)


def test_a_door_that_connects_with_curve_needs_the_key_of_the_other_side(tmp_path: Path) -> None:
    """Without the key of the server nobody could know who answers there."""
    with pytest.raises(ConfigError, match="curve needs server_key in the table of this door"):
        read(
            tmp_path,
            f'[security]\nmechanism = "curve"\nsecret_key_file = "{keys(tmp_path)}"\n'
            '[[devices]]\nkind = "queue"\nbackend = ">tcp://127.0.0.1:7003"',
        )


@pytest.mark.parametrize("key", ["password", "tokens", "keys"])
def test_a_wrong_value_that_may_be_a_secret_is_not_repeated(tmp_path: Path, key: str) -> None:
    """Whoever writes a password where its hash is expected does not find it in the log."""
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, f'[security.principals.a]\n{key} = "hunter2hunter2"\npermissions = "all"')
    assert f"[security.principals.a] {key}: expected " in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_running_broker_takes_principals_anonymous_and_keys(tmp_path: Path) -> None:
    path = keys(tmp_path)
    toml = f'[security]\nmechanism = "curve"\nsecret_key_file = "{path}"\n'
    old = read(tmp_path, f'{toml}[security.principals.a]\npermissions = "all"')
    path.unlink()
    write_key_file(path, KeyPair(bytes(32), bytes([7] * 32)))
    new = read(
        tmp_path,
        f'{toml.replace("curve", "null")}anonymous = "read"\nallow_plain = true\n'
        '[security.principals.b]\npermissions = "none"',
    )

    taken = taken_over(old, new)

    assert taken.security.mechanism == ("null",)
    assert taken.security.anonymous == Permissions.read("read")
    assert taken.security.allow_plain
    assert taken.principals == new.principals
    assert taken.security.secret_key_file is not None
    assert taken.security.secret_key_file.keys.secret == bytes([7] * 32)
    assert {str(change).replace('"', ""): change.live for change in changes(old, new)} == {
        "[security] mechanism: curve -> null": True,
        "[security] secret_key_file: another one": True,
        "[security] anonymous: nothing -> read=*": True,
        "[security] allow_plain: false -> true": True,
        "[security.principals.a]: true -> false": True,
        "[security.principals.b]: false -> true": True,
    }


def test_a_running_broker_takes_what_devices_and_doors_say_of_security(tmp_path: Path) -> None:
    """A device is known by its kind and doors, wherever it is in the file; nothing else of it is taken."""
    push = 'kind = "streamer"\nfrontend = "tcp://127.0.0.1:7001"'
    ask = 'kind = "queue"\nfrontend = ["tcp://127.0.0.1:7002", "tcp://127.0.0.1:7003"]'
    library = '[broker]\nendpoint = {{ endpoint = "tcp://127.0.0.1:7000", anonymous = "{}" }}\n'
    old = read(tmp_path, f"{library.format('all')}[[devices]]\n{push}\n[[devices]]\n{ask}")
    new = read(
        tmp_path,
        f"""{library.format("read")}
        [security]
        secret_key_file = "{keys(tmp_path)}"
        [[devices]]
        kind = "queue"
        frontend = [{{ endpoint = "tcp://127.0.0.1:7002", mechanism = "curve" }}, "tcp://127.0.0.1:7003"]
        [[devices]]
        {push}
        anonymous = "push"
        insecure = true
        hwm = 7
        """,
    )

    taken = taken_over(old, new)

    rules = [rule_of(taken.security, end, device) for _place, end, device in taken.doors]
    assert [rule[:3] for rule in rules] == [
        (("null",), Permissions.read("read"), False),
        (("null",), Permissions.read("push"), True),
        (("curve",), Permissions(), False),
        (("null",), Permissions.all(), False),
    ]
    assert taken.devices[0].hwm == old.devices[0].hwm
    assert {str(change).replace('"', ""): change.live for change in changes(old, new)} == {
        "[broker] endpoint @tcp://127.0.0.1:7000 anonymous: all -> read=*": True,
        "[security] secret_key_file: nothing -> " + str(tmp_path / "broker.key"): True,
        "[[devices]] no. 1 anonymous: nothing -> push=*": True,
        "[[devices]] no. 1 insecure: false -> true": True,
        "[[devices]] no. 1 hwm: 10000 -> 7": False,
        "[[devices]] no. 2 frontend @tcp://127.0.0.1:7002 mechanism: nothing -> curve": True,
    }
    assert [change.live for change in changes(taken, new)] == [False]


def test_nothing_is_taken_of_a_device_with_other_doors(tmp_path: Path) -> None:
    """Its doors that are open would get the rules of doors that are not."""
    device = '[[devices]]\nkind = "streamer"\nfrontend = "tcp://127.0.0.1:{}"\nanonymous = "{}"'
    old = read(tmp_path, device.format(7001, "push"))
    new = read(tmp_path, device.format(7002, "all"))
    assert taken_over(old, new).devices == old.devices
    assert [change.live for change in changes(old, new)] == [False, False]


def test_a_key_file_that_can_not_be_read_is_one_problem(tmp_path: Path) -> None:
    """What each door lacks by it is not said, too."""
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, '[security]\nmechanism = "curve"\nsecret_key_file = "/nowhere"')
    assert len(refused.value.problems) == 1


def test_a_door_with_a_table_is_an_endpoint(tmp_path: Path) -> None:
    config = read(tmp_path, '[broker]\nendpoint = { endpoint = "@tcp://127.0.0.1:7000", anonymous = "all" }')
    endpoint = config.broker.endpoint
    assert isinstance(endpoint, Door)
    assert (endpoint.address, endpoint.bind) == ("tcp://127.0.0.1:7000", True)
    assert str(endpoint) == "@tcp://127.0.0.1:7000"


def rules_of(config: Config) -> set[DoorRule]:
    return {rule_of(config.security, end, device) for _place, end, device in config.doors}


def keys(folder: Path) -> Path:
    path = folder / "broker.key"
    if not path.exists():
        write_key_file(path, KeyPair(bytes(32), bytes(range(32))))
    return path


def read(folder: Path, toml: str) -> Config:
    file = folder / "sluicemq.toml"
    file.write_text(toml)
    return load(file, {}, {})
