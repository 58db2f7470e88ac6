"""Mistakes that a checker of types finds: what follows each is what mypy and pyright say of the line.

Read by ``test_types_of_programs``, and never run.
"""

from sluicemq import Client, Forward, Job, Producer, Reader, Start, Worker


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
