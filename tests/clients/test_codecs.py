"""Values in place of bytes: JSON and codecs of a program's own, with the content type in a job's headers."""

import pickle
from typing import Any

import pytest

from clients.scripted_broker import SECONDS, ScriptedBroker
from sluicemq import JSON, Client, Codec, Job, Producer, PushReceipt, Worker
from sluicemq.protocol import wire
from sluicemq.reply import Reply
from sluicemq.transport.pop import ignore_progress

VALUE = {"to": "ann", "sizes": [1, 2.5, None], "text": "grün"}
PACKED = '{"to":"ann","sizes":[1,2.5,null],"text":"grün"}'.encode()


class Pickled:
    content_type = "application/x-pickle"

    def encode(self, value: Any) -> bytes:
        return pickle.dumps(value, 0)  # ASCII, as the stub of a broker wants payloads

    def decode(self, data: bytes) -> Any:
        return pickle.loads(data)  # noqa: S301 - it is ours


PICKLED: Codec = Pickled()


def rows(broker: ScriptedBroker) -> list[tuple[bytes, dict[str, Any]]]:
    """Payload and headers of each job that was pushed."""
    return [(row[1], row[2]) for message in broker.of(wire.PUSH) for row in message.fields[1]]


def test_json_is_pushed_with_its_content_type(broker: ScriptedBroker) -> None:
    with Producer(endpoint=broker.endpoint) as producer:
        producer.push_json("mail", VALUE, priority=3, headers={"colour": "red"}).wait(SECONDS)
        producer.push_value("mail", [1], headers={"content-type": "application/special+json"}).wait(SECONDS)
    assert rows(broker) == [
        (PACKED, {"priority": 3, "headers": {"content-type": "application/json", "colour": "red"}}),
        (b"[1]", {"headers": {"content-type": "application/special+json"}}),
    ]


def test_a_codec_makes_the_bytes_of_all_forms_of_a_push(broker: ScriptedBroker) -> None:
    broker.on[wire.RESULT] = lambda _message: pickle.dumps({"done": True})
    with Producer(codec=PICKLED, endpoint=broker.endpoint) as producer:
        producer.push_value("mail", VALUE)
        for receipt in producer.push_many_values("mail", [VALUE, 7], ttl=60):
            receipt.wait(SECONDS)
        assert producer.submit_value("mail", VALUE).value(SECONDS) == {"done": True}
    found = rows(broker)
    assert [pickle.loads(payload) for payload, _headers in found] == [VALUE, VALUE, 7, VALUE]  # noqa: S301
    assert {headers["headers"]["content-type"] for _payload, headers in found} == {"application/x-pickle"}


def test_a_job_has_its_payload_as_value_json_and_text() -> None:
    json = Job(payload=PACKED, headers={"content-type": "application/json"})
    assert json.content_type == "application/json"
    assert json.value() == json.json() == VALUE
    assert json.text() == PACKED.decode()
    plain = Job(payload=b"[1]")
    assert plain.content_type is None
    assert plain.value() == [1]


@pytest.mark.parametrize(
    ("job", "what"),
    [
        (Job(payload=b"{", id="j"), "the payload of job j is not application/json: Expecting property name"),
        (
            Job(payload=b"x", id="j", headers={"content-type": "application/x-pickle"}),
            "the content type of job j is 'application/x-pickle', the codec here is 'application/json'",
        ),
    ],
)
def test_a_payload_that_is_no_value_says_why(job: Job, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        job.value()


@pytest.mark.parametrize(
    ("value", "error", "what"),
    [
        ({1, 2}, TypeError, "value has no form as application/json: Object of type set"),
        (float("nan"), ValueError, "value has no form as application/json: Out of range float"),
    ],
)
def test_a_value_that_no_json_has_is_refused_before_it_is_sent(
    broker: ScriptedBroker, value: Any, error: type[Exception], what: str
) -> None:
    with Producer(endpoint=broker.endpoint) as producer:
        with pytest.raises(error, match=what):
            producer.push_json("mail", value)
        with pytest.raises(error, match=what):
            producer.push_many_values("mail", [value])
    assert rows(broker) == []


def test_what_is_no_codec_is_refused() -> None:
    for kind, args in ((Producer, ()), (Client, ()), (Worker, ("mail", print))):
        made: Any = kind
        with pytest.raises(TypeError, match="codec is an object with encode, decode and content_type"):
            made(*args, codec="json")


def test_a_worker_decodes_by_its_codec_and_encodes_results(broker: ScriptedBroker) -> None:
    def handler(job: Job) -> Any:
        return {"twice": job.value() * 2}

    with Worker("mail", handler, codec=PICKLED, endpoint=broker.endpoint):
        broker.deliver(broker.wait_for(wire.READY)[0].peer, "mail", [PICKLED.encode(7)])
        broker.wait_until(lambda: bool(broker.settled()))
    (ended,) = broker.settled().values()
    assert ended[0] == wire.COMMIT
    assert pickle.loads(ended[1]) == {"twice": 14}  # noqa: S301


def test_a_worker_without_a_codec_refuses_results_that_are_no_bytes(broker: ScriptedBroker) -> None:
    def handler(_job: Job) -> Any:
        return {"twice": 14}

    with Worker("mail", handler, endpoint=broker.endpoint):
        broker.deliver(broker.wait_for(wire.READY)[0].peer, "mail", [b"7"])
        broker.wait_until(lambda: bool(broker.settled()))
    (ended,) = broker.settled().values()
    assert ended[:2] == [
        "ROLLBACK",
        "TypeError: the handler returned dict, expected bytes, a Forward or None",
    ]


@pytest.mark.parametrize("way", ["reserve", "pop"])
def test_jobs_of_a_client_are_decoded_by_its_codec(broker: ScriptedBroker, way: str) -> None:
    def deliver(message: Any) -> None:
        if message.fields[1]:
            broker.deliver(message.peer, "mail", [PICKLED.encode(["x"])])

    broker.on[wire.READY] = deliver
    with Client(codec=PICKLED, endpoint=broker.endpoint) as client:
        jobs = list(getattr(client.jobs, way)("mail", 1, wait=SECONDS))
        assert [job.value() for job in jobs] == [["x"]]


def test_a_reply_is_json_text_or_a_value() -> None:
    reply = Reply(ignore_progress)
    reply.receipt = PushReceipt("mail", "id", b"", None, 1)
    reply.set_result(PACKED)
    assert reply.json() == reply.value() == VALUE
    assert reply.text() == PACKED.decode()
    assert JSON.decode(JSON.encode(VALUE)) == VALUE
