"""The HTTP door over TLS: real clients, a certificate that is replaced, and peers that are slow."""

import http.client
import json
import re
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from sluicemq_broker.http import BASE
from support.broker_process import BrokerProcess
from support.certificates import Authority, Certificate
from support.http_reader import Answer
from support.own_queue import TOKEN
from support.waiting import TIMEOUT, wait_until

#: Peers that begin a handshake and say nothing more.
HALF_OPEN = 200


class SecureWeb:
    """A door at ``host:port`` that speaks TLS, for a client that trusts one authority."""

    def __init__(self, address: str, authority: Authority) -> None:
        self.address = address
        self.context = ssl.create_default_context(cafile=authority.file)

    def get(self, path: str, method: str = "GET", body: Any = None, **headers: str) -> Answer:
        connection = http.client.HTTPSConnection(self.address, timeout=TIMEOUT, context=self.context)
        try:
            sent = None if body is None else json.dumps(body).encode()
            connection.request(method, path, sent, {k.replace("_", "-"): v for k, v in headers.items()})
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        given = {"Content_Type": "application/json", "X_SluiceMQ_Action": "test", **headers}
        return self.get(path, "POST", body or {}, **given)

    def serial_number(self) -> str:
        """Of the certificate that a new connection gets."""
        host, _, port = self.address.rpartition(":")
        with (
            socket.create_connection((host, int(port)), timeout=TIMEOUT) as plain,
            self.context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            return str((secure.getpeercert() or {})["serialNumber"])

    def dial(self) -> socket.socket:
        host, _, port = self.address.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=TIMEOUT)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> Certificate:
    return authority.certificate("127.0.0.1", "localhost")


@pytest.fixture(scope="module")
def broker(mongo_uri: str, certificate: Certificate) -> Iterator[BrokerProcess]:
    door = {"http_tls_cert": str(certificate.chain), "http_tls_key": str(certificate.key)}
    config = {"broker": {"http": "127.0.0.1:0", "http_token": TOKEN, **door}, "devices": []}
    with BrokerProcess(mongo_uri, "test_https", config=config) as broker:
        yield broker


@pytest.fixture
def web(broker: BrokerProcess, authority: Authority) -> SecureWeb:
    return SecureWeb(broker.http, authority)


def test_everything_is_answered_over_tls_and_browsers_are_told_to_stay_there(web: SecureWeb) -> None:
    answer = web.get("/healthz")
    assert (answer.status, answer.body) == (200, b"ok\n")
    assert answer.headers["strict-transport-security"].startswith("max-age=")
    assert web.get(f"{BASE}/overview").json["actions"] is True
    assert b"sluicemq_" in web.get("/metrics").body


def test_no_browser_is_told_so_of_localhost_which_has_other_servers(web: SecureWeb) -> None:
    assert "strict-transport-security" not in web.get("/healthz", Host="localhost").headers


@pytest.mark.parametrize("host", ["127.0.0.1:", "[::1]:", "localhost:0", "127.0.0.1:99999"])
def test_a_host_with_any_port_or_an_empty_one_is_answered(web: SecureWeb, host: str) -> None:
    assert web.get(f"{BASE}/overview", Host=host).status == 200


def test_a_client_that_does_not_trust_the_authority_stays_away(broker: BrokerProcess) -> None:
    stranger = http.client.HTTPSConnection(broker.http, context=ssl.create_default_context())
    with pytest.raises(ssl.SSLCertVerificationError):
        stranger.request("GET", "/healthz")
    wait_until(lambda: "UNKNOWN_CA" in broker.log_text(), what="a line about it")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_1_2_and_newer_are_spoken(web: SecureWeb, version: ssl.TLSVersion) -> None:
    web.context.minimum_version = web.context.maximum_version = version
    assert web.get("/healthz").status == 200


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_older_tls_is_refused(web: SecureWeb) -> None:
    web.context.minimum_version = web.context.maximum_version = ssl.TLSVersion.TLSv1_1
    web.context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        web.get("/healthz")


def test_plain_http_gets_nothing(web: SecureWeb) -> None:
    with web.dial() as plain:
        plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b""
        while part := _received(plain):
            answer += part
        assert b"HTTP" not in answer
    assert web.get("/healthz").status == 200


def _received(plain: socket.socket) -> bytes:
    try:
        return plain.recv(65536)
    except ConnectionError:
        return b""


def test_the_cookie_of_a_login_over_tls_is_sent_over_tls_only(web: SecureWeb) -> None:
    answer = web.post(f"{BASE}/login", {"token": TOKEN}, Origin=f"https://{web.address}")
    assert answer.status == 200
    attributes = {header.strip().lower() for header in answer.headers["set-cookie"].split(";")[1:]}
    assert {"httponly", "secure", "samesite=strict", "path=/"} == attributes


def test_a_closed_connection_ends_with_the_goodbye_of_tls(web: SecureWeb) -> None:
    web.context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
    with web.context.wrap_socket(
        web.dial(), server_hostname="127.0.0.1", suppress_ragged_eofs=False
    ) as secure:
        secure.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        while secure.recv(65536):
            pass


def test_peers_that_begin_a_handshake_and_say_nothing_more_keep_nobody_out(web: SecureWeb) -> None:
    with ExitStack() as peers:
        for number in range(HALF_OPEN):
            peer = peers.enter_context(web.dial())
            if number % 2:
                peer.sendall(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a ClientHello
        for _ in range(5):
            assert web.get("/healthz").status == 200
            assert web.get(f"{BASE}/overview").status == 200


def test_sighup_takes_another_certificate_and_keeps_the_former_one_if_that_is_broken(
    broker: BrokerProcess, web: SecureWeb, authority: Authority, certificate: Certificate
) -> None:
    # Given an open connection
    before = web.serial_number()
    kept = http.client.HTTPSConnection(broker.http, timeout=TIMEOUT, context=web.context)
    kept.request("GET", "/healthz")
    assert kept.getresponse().read() == b"ok\n"
    # When the files have another certificate
    other = authority.certificate("127.0.0.1", "localhost", name="other")
    _replace(certificate, other.chain.read_bytes(), other.key.read_bytes())
    broker.send_signal(signal.SIGHUP)
    # Then new connections get it, and the open one goes on
    wait_until(lambda: web.serial_number() != before, what="the other certificate")
    after = web.serial_number()
    kept.request("GET", "/healthz")
    assert kept.getresponse().read() == b"ok\n"
    kept.close()
    # When that certificate has expired, then it is said and counted
    assert seconds_left(web) > 0
    old = authority.certificate("127.0.0.1", "localhost", name="old", days=-1)
    _replace(certificate, old.chain.read_bytes(), old.key.read_bytes())
    broker.send_signal(signal.SIGHUP)
    broker.wait_log("the certificate of the HTTP door has expired on")
    web.context.check_hostname, web.context.verify_mode = False, ssl.CERT_NONE
    wait_until(lambda: seconds_left(web) < 0, what="figures that are not shared any more")
    _replace(certificate, other.chain.read_bytes(), other.key.read_bytes())
    broker.send_signal(signal.SIGHUP)
    wait_until(lambda: seconds_left(web) > 0, what="the certificate that holds")
    web.context.verify_mode = ssl.CERT_REQUIRED
    # When the certificate is broken, then the former one stays
    _replace(certificate, b"no certificate", other.key.read_bytes())
    broker.send_signal(signal.SIGHUP)
    broker.wait_log("the configuration is not valid, the former one stays")
    assert web.serial_number() == after
    assert str(certificate.chain) in broker.log_text()
    _replace(certificate, other.chain.read_bytes(), other.key.read_bytes())


def seconds_left(web: SecureWeb) -> float:
    """What /metrics says of the certificate."""
    line = re.search(rb"^sluicemq_certificate_left_seconds (\S+)", web.get("/metrics").body, re.MULTILINE)
    assert line
    return float(line[1])


def _replace(certificate: Certificate, chain: bytes, key: bytes) -> None:
    for file, content in ((certificate.chain, chain), (certificate.key, key)):
        fresh = file.with_suffix(".new")
        fresh.write_bytes(content)
        fresh.chmod(0o600)
        fresh.rename(file)


def test_sighup_takes_another_token(broker: BrokerProcess, web: SecureWeb) -> None:
    another = "another-token-for-tests"
    _configure(broker, http_token=another)
    wait_until(
        lambda: web.post(f"{BASE}/token", Authorization=f"Bearer {another}").status == 200,
        what="the other token",
    )
    assert web.post(f"{BASE}/token", Authorization=f"Bearer {TOKEN}").status == 401
    _configure(broker, http_token=TOKEN)
    wait_until(
        lambda: web.post(f"{BASE}/token", Authorization=f"Bearer {TOKEN}").status == 200,
        what="the former token",
    )


def _configure(broker: BrokerProcess, **values: str) -> None:
    broker.config["broker"].update(values)
    (Path(broker.folder) / "broker.toml").write_text(tomli_w.dumps(broker.config))
    broker.send_signal(signal.SIGHUP)
