"""``sluicemq ping --http``: /readyz of an HTTP door, without a key."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sluicemq.cli.app import app
from support.broker_process import BrokerProcess
from support.certificates import Authority
from support.ports import free_port

READY = {"serves": True, "store": "ok", "lease": "ok", "doors": "ok"}
AWAY = {"serves": False, "store": "MongoDB has not answered for 4.2 s", "lease": "ok", "doors": "ok"}


def ping(address: str, *words: str) -> Result:
    return CliRunner().invoke(app, ["ping", "--http", address, *words])


@contextmanager
def door(*answers: object, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """A door that answers so, one question after the other; the last answer again and again."""
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/readyz"
            answer = left.pop(0) if len(left) > 1 else left[0]
            said = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(200 if answer == READY else 503)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_broker_that_asks_for_keys_is_ready_for_one_without(mongo_uri: str, database: str) -> None:
    config = {"broker": {"http": "127.0.0.1:0"}, "devices": [], "security": {"anonymous": "none"}}
    with BrokerProcess(mongo_uri, database, config=config) as broker:
        address = broker.http.removeprefix("http://")
        said = ping(address)
        assert (said.exit_code, said.stdout) == (0, f"{address} is ready\n")


def test_what_is_missing_is_said_with_the_exit_code_of_a_store_that_is_away() -> None:
    with door(AWAY) as address:
        said = ping(address)
        assert said.exit_code == 4
        assert said.stdout == f"{address} is not ready: store: MongoDB has not answered for 4.2 s\n"
        assert json.loads(ping(address, "--json").stdout) == {"http": address, **AWAY}


def test_wait_is_over_when_the_broker_is_ready() -> None:
    with door(AWAY, AWAY, READY) as address:
        assert ping(address, "--wait", "60").exit_code == 0


def test_a_certificate_of_any_name_will_do_for_a_question_without_secrets(tmp_path: Path) -> None:
    certificate = Authority(tmp_path).certificate("mq.example.com")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.chain, certificate.key)
    with door(READY, tls=context) as address:
        assert ping(f"https://{address}").exit_code == 0
        assert ping(address, "--timeout", "60").exit_code == 3


@pytest.mark.parametrize("said", [b"<html>", b"[]", b""])
def test_something_else_than_a_broker_is_none(said: bytes) -> None:
    with door(said) as address:
        result = ping(address)
    assert result.exit_code == 3
    assert f"no broker answers at http://{address}/readyz" in result.stderr


def test_nobody_there_is_said_in_one_line() -> None:
    result = ping(f"127.0.0.1:{free_port()}", "--wait", "0.1")
    assert result.exit_code == 3
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("address", ["", "127.0.0.1", "ftp://127.0.0.1:21", "a:b", "tcp://127.0.0.1:5550"])
def test_what_is_no_address_is_wrong_usage(address: str) -> None:
    assert ping(address).exit_code == 2
