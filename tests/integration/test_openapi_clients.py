"""Programs over clients that are generated from OpenAPI: they compile, and work at a broker."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from openapi_spec_validator import validate

from support.broker_under_test import BrokerUnderTest
from support.http_site import description
from support.own_queue import TOKEN, OwnQueue
from support.waiting import TIMEOUT, wait_until

PROGRAM = Path(__file__).parent / "openapi" / "program.ts"
OPTIONS = ["--strict", "--noEmitOnError", "--target", "es2022", "--module", "nodenext", "--skipLibCheck"]
MODULES = Path(os.environ.get("NODE_PATH", "nowhere"))


def test_the_document_is_valid_openapi() -> None:
    validate(description())


@pytest.mark.full  # the TypeScript compiler takes seconds
@pytest.mark.skipif(not (MODULES / "openapi-fetch").is_dir(), reason="openapi-fetch for Node is not there")
def test_a_typescript_program_lists_queues_redrives_and_follows(
    shared_broker: BrokerUnderTest, jobs: OwnQueue, tmp_path: Path
) -> None:
    # Given a program over types that are made of the document
    document = tmp_path / "openapi.json"
    document.write_text(json.dumps(description()))
    (tmp_path / "node_modules").symlink_to(MODULES)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    shutil.copy(PROGRAM, tmp_path)
    run("openapi-typescript", str(document), "-o", str(tmp_path / "api.d.ts"), folder=tmp_path)
    run("tsc", *OPTIONS, "program.ts", folder=tmp_path)
    # and two dead letters
    for payload in (b"a", b"b"):
        jobs.push(payload)
        jobs.take().reject("no use")
    wait_until(lambda: jobs.counts()["dead"] == 2, what="the deaths")
    address = f"http://{shared_broker.process.http}"
    told = subprocess.run(
        ["node", "program.js", address, TOKEN, jobs.queue],
        cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT, check=True,
    )  # fmt: skip
    found = json.loads(told.stdout)
    assert (found["before"], found["moved"], found["after"]) == (2, 2, 0)
    assert (found["refused"], bool(found["first"])) == ("NOT_FOUND", True)


def run(name: str, *arguments: str, folder: Path) -> None:
    """A program of Node's packages; its output is in the error if it fails."""
    program = MODULES / ".bin" / name
    done = subprocess.run(
        [str(program), *arguments], cwd=folder, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
