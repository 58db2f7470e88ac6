"""Keys of CURVE: Z85, key pairs and key files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st
from zmq.utils import z85

from sluicemq.protocol.keys import (
    KeyPair,
    decode,
    encode,
    key_file,
    key_id,
    read_key,
    read_key_file,
    write_key_file,
)
from sluicemq.protocol.secret_files import others_may

PAIR = KeyPair(bytes(range(32)), bytes(range(100, 132)))


@given(st.lists(st.binary(min_size=4, max_size=4)).map(b"".join))
def test_z85_is_that_of_libzmq(data: bytes) -> None:
    assert encode(data) == z85.encode(data).decode()
    assert decode(encode(data)) == data


def test_the_example_of_the_rfc() -> None:
    assert encode(bytes.fromhex("864fd26fb559f75b")) == "HelloWorld"


@pytest.mark.parametrize("text", ["1234", "12 45", "12,45", "#####", "ääääää"])
def test_a_text_that_is_no_z85_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no text in Z85"):
        decode(text)


@pytest.mark.parametrize("text", ["", "secret", "s" * 39, "s" * 41, "," * 40, 40, None])
def test_a_key_that_is_none_is_refused_and_not_repeated(text: object) -> None:
    with pytest.raises(ValueError, match=r"^a key of 40 characters in Z85$"):
        read_key(text)


def test_keys_of_libzmq_can_be_read() -> None:
    public, secret = zmq.curve_keypair()
    assert encode(read_key(public.decode())).encode() == public
    assert encode(read_key(secret.decode())).encode() == secret


def test_a_key_file_is_for_its_owner_alone_and_says_what_it_is(tmp_path: Path) -> None:
    file = tmp_path / "worker.key"
    before = os.umask(0)
    try:
        write_key_file(file, PAIR)
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_key_file(file) == PAIR
    assert file.read_text().startswith("# Key pair of SluiceMQ")


def test_no_key_file_is_written_over(tmp_path: Path) -> None:
    file = tmp_path / "worker.key"
    write_key_file(file, PAIR)
    with pytest.raises(FileExistsError):
        write_key_file(file, KeyPair(bytes(32), bytes(32)))
    assert read_key_file(file) == PAIR


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o666])
def test_a_key_file_that_others_can_read_is_refused_with_what_mends_it(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "worker.key"
    write_key_file(file, PAIR)
    file.chmod(mode)
    with pytest.raises(ValueError, match=f"others can read the key file {file}: chmod 600 {file}"):
        read_key_file(file)


@pytest.mark.parametrize(
    ("owner", "group", "mode", "others"),
    [
        (1000, 1000, 0o660, False),  # the group is the owner's own, as a Pod has it
        (1000, 4242, 0o660, False),  # a supplementary group of this process: fsGroup
        (0, 4242, 0o440, False),  # a Secret with fsGroup
        (1000, 4242, 0o664, True),
        (1000, 77, 0o640, True),  # a group of others
        (1000, 100, 0o640, True),  # this process's main group, which its other users have, too
        (1000, 0, 0o640, True),
    ],
)
def test_a_group_may_read_a_secret_file_if_it_is_this_process_s_own(
    owner: int, group: int, mode: int, *, others: bool
) -> None:
    found = os.stat_result((mode, 0, 0, 1, owner, group, 0, 0, 0, 0))
    assert bool(others_may(found, groups=(100, 1000, 4242, 0), main=100)) is others


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("public_key", "no TOML"),
        (key_file(PAIR).replace("secret_key", "secret"), "needs secret_key = a key of 40 characters in Z85"),
        (key_file(PAIR).replace("public_key", "public"), "needs public_key = a key of 40 characters in Z85"),
        ('public_key = 1\nsecret_key = "planted-secret"', "needs public_key"),
        ("x" * 100_000, "longer than 65536 characters"),
    ],
)
def test_what_is_wrong_with_a_key_file_hides_its_secret(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "worker.key"
    file.touch(0o600)
    file.write_text(text)
    with pytest.raises(ValueError, match=says) as raised:
        read_key_file(file)
    assert str(file) in str(raised.value)
    assert encode(PAIR.secret) not in str(raised.value)
    assert "planted-secret" not in str(raised.value)


def test_a_key_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"can't read the key file {tmp_path}/none: No such file"):
        read_key_file(tmp_path / "none")


def test_the_secret_is_not_in_the_repr() -> None:
    assert repr(PAIR.secret) not in repr(PAIR)
    assert repr(PAIR.public) in repr(PAIR)


def test_a_key_has_a_short_name() -> None:
    assert key_id(bytes(32)) == "66687aadf862"
