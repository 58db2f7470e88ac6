"""Mistakes that a checker of types finds: what follows each is what mypy and pyright say of the line.

Of a line that says nothing they find nothing.

Read by ``test_types_of_programs``, and never run.
"""

from datetime import UTC, datetime, timedelta

from sluicemq import (
    PREVIOUS,
    App,
    Client,
    Forward,
    Job,
    NewJob,
    Producer,
    Reader,
    Retry,
    Start,
    Worker,
    chain,
)


def answers_text(job: Job) -> str:
    return job.text()


def handler(_job: Job) -> Forward:
    return Forward("next", priorty=3)  # mypy: call-arg; pyright: reportCallIssue


client, producer = Client(), Producer()

producer.push("mail", "text")  # mypy: arg-type; pyright: reportArgumentType
producer.push("mail", b"x", prioriti=3)  # mypy: call-arg; pyright: reportCallIssue
producer.push("mail", b"x", delay=b"5m")  # mypy: arg-type; pyright: reportArgumentType
producer.push("mail", b"x").waits(10)  # mypy: attr-defined; pyright: reportAttributeAccessIssue
producer.submit("mail", b"x").result(10).items()  # mypy: attr-defined; pyright: reportAttributeAccessIssue
Producer("tcp://127.0.0.1:5550")  # mypy: call-arg arg-type; pyright: reportCallIssue
Worker("mail", answers_text)  # mypy: arg-type; pyright: reportArgumentType
Worker(["mail", "bulk"], handler, order="first")  # mypy: arg-type; pyright: reportArgumentType
Reader("prices", start=7)  # mypy: arg-type; pyright: reportArgumentType
Start.at("7")  # mypy: arg-type; pyright: reportArgumentType
client.queues.pase("mail")  # mypy: attr-defined; pyright: reportAttributeAccessIssue
client.queues.get("mail").reddy  # mypy: attr-defined; pyright: reportAttributeAccessIssue
client.jobs.reserve("mail", "10")  # mypy: arg-type; pyright: reportArgumentType
client.queues.purge("mail", "ded")  # mypy: arg-type; pyright: reportArgumentType


def in_time(job: Job) -> bytes:
    if job.age > 60 and job.priority < 9 and job.attempt < job.max_attempts:
        raise Retry("later", delay=timedelta(minutes=1))
    job.extend(timedelta(minutes=1))
    return job.payload


async def as_coroutine(job: Job) -> bytes:
    return job.payload


assert in_time(Job(payload=b"x", headers={"a": 1})) == b"x"
jobs: list[bytes | NewJob] = [b"x", {"payload": b"x", "priority": 9, "id": "mine"}]
producer.push("q", b"x", priority=9, not_before=datetime.now(UTC), ttl=timedelta(days=1))
producer.call("q", b"x", 30, delay=1.5, id="mine").decode()
producer.submit("q", b"x", headers={"a": [1]}).result(1).decode()
producer.push_many("q", jobs, ttl=60)[0].wait()
producer.push_many("q", [b"x", b"y"])
producer.push_many("q", [{"payload": b"x", "delay": timedelta(hours=1)}])
client.jobs.change("q", "mine", delay=timedelta(0))
Worker("q", in_time).run()
producer.call("q", b"x", prioriti=9)  # mypy: call-arg; pyright: reportCallIssue
producer.submit("q", b"x", prioriti=9)  # mypy: call-arg; pyright: reportCallIssue
producer.push_many("q", [b"x"], prioriti=9)  # mypy: call-arg; pyright: reportCallIssue
producer.push_many("q", [{"payload": b"x", "prioriti": 9}])  # mypy: list-item; pyright: reportArgumentType
producer.push("q", b"x", priority="9")  # mypy: arg-type; pyright: reportArgumentType
Worker("q", as_coroutine)  # mypy: arg-type; pyright: reportArgumentType

app = App("shop")


@app.schedule(every="1h", arguments={"to": "a"})
@app.task(queue="mail", retries=5, timeout=timedelta(minutes=1), priority=9)
def send(to: str, copies: int = 1) -> int:
    return copies


@app.task(bind=True)
async def count(job: Job, to: str) -> int:
    return job.attempt


send.options(delay="5m", id="mine").push("a", copies=2).wait()
count.push("a")
send("a").bit_length()
chain(send.s("a"), count.s(PREVIOUS)).call(5)
send.push("a", copies="2")  # mypy: arg-type; pyright: reportArgumentType
send.push()  # mypy: call-arg; pyright: reportCallIssue
send.options(prioriti=9).push("a")  # mypy: call-arg; pyright: reportCallIssue
