"""A sign-up whose mail is a task: README.md says how to run it.

``gunicorn --preload signup:web`` serves, and ``sluicemq work signup:tasks`` sends.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from flask import Flask, request

from sluicemq import App, Client, DeadError, NotFoundError, SluiceError

tasks = App()  # its producer pushes from each process of a server that forks
web = Flask(__name__)


@cache
def broker() -> Client:
    """Return the client of the web processes; a worker makes none."""
    return Client()


@tasks.task(queue="mail", retries=5, reply="result")
def welcome(address: str) -> str:
    """Send a mail."""
    return f"a mail has gone to {address}"


@web.post("/sign-up")
def sign_up() -> tuple[dict[str, Any], int]:
    """Take a sign-up; a browser that sends the form again makes no second mail."""
    receipt = welcome.options(id=request.form["token"]).push(request.form["address"])
    receipt.wait(5)  # until it is stored durably
    return {"id": receipt.id, "again": receipt.existed}, 202


@web.get("/mail/<job_id>")
def mail(job_id: str) -> tuple[dict[str, Any], int]:
    """Return how a mail is; asked with ``?wait=10``, once it has gone, or after 10 seconds."""
    try:
        result = broker().jobs.result("mail", job_id, wait=float(request.args.get("wait", 0)))
    except TimeoutError:
        return {"state": "on its way"}, 200
    except DeadError as error:
        return {"state": "failed", "why": str(error)}, 200
    return {"state": "sent", "result": welcome.signature.result(result)}, 200


@web.errorhandler(NotFoundError)
def not_found(error: NotFoundError) -> tuple[dict[str, Any], int]:
    """Answer a question about what is not there."""
    return {"error": str(error)}, 404


@web.errorhandler(SluiceError)
def unavailable(error: SluiceError) -> tuple[dict[str, Any], int]:
    """Answer while no broker does: the form may be sent again."""
    return {"error": str(error)}, 503
