"""Workers of the load: of the library, claims of the library, REP and PULL sockets."""

from __future__ import annotations

import json
import threading
import time
from typing import Any, Final

import zmq

from chaos import features
from chaos.books import ACKNOWLEDGED, BEGUN, COMMIT, ENDED, FANOUT, FORWARD, REJECT, ROLLBACK
from chaos.life import Life
from sluicemq import (
    ClaimedJob,
    Client,
    FanOut,
    Forward,
    Job,
    LeaseLostError,
    Reject,
    Retry,
    SluiceError,
    UncertainError,
    Worker,
)

#: Jobs at once at each worker of the library, so that jobs wait in it when it dies; one of these in bursts.
_PREFETCH: Final = 5
_OF_PACKS: Final = (1, _PREFETCH, 64, 300)
_CLAIM: Final = 10


def worker(life: Life) -> None:
    """Work on all queues of the library's workers, and by claims."""
    working = [
        Worker(
            name,
            _Handler(life),
            prefetch=life.random.choice(_OF_PACKS) if name in features.PACKED else _PREFETCH,
            name=life.program,
            stop_timeout=5.0,
            endpoint=life.endpoints,
        )
        for name in features.WORKED_BY_LIBRARY
    ]
    for worker in working:
        worker.start()
    life.begin(_claim, life)
    life.wait()
    stopping = [threading.Thread(target=worker.stop) for worker in working]
    for thread in stopping:
        thread.start()
    for thread in stopping:
        thread.join()


class _Handler:
    """Does what the job's queue asks for; the verdict is booked before it is given."""

    def __init__(self, life: Life) -> None:
        self._life = life

    def __call__(self, job: Job) -> Any:
        name = job.queue
        id_ = _begin(self._life, job)
        time.sleep(self._life.random.uniform(0.1, 1.0) * features.ALL[name].work)
        verdict = _verdict(job)
        self._life.book.note(ENDED, name, id_, verdict=verdict)
        match verdict:
            case "reject":
                raise Reject("as it was pushed to be")
            case "rollback":
                raise Retry("its first attempt", 0.1)
            case "forward":
                return Forward(features.SECOND)
            case "fanout":
                pages = [
                    Forward(features.PAGES, b"%s.%d" % (job.payload, at)) for at in range(features.CHILDREN)
                ]
                return FanOut(*pages, result=features.answer_to(job.payload))
        return features.answer_to(job.payload) if name == features.ANSWERS else None


def _begin(life: Life, job: Job | ClaimedJob) -> str:
    """Book that a job is begun, and return the id by which the books know it."""
    payload = job.payload.decode()
    id_ = payload if job.queue in features.KNOWN_BY_PAYLOAD else job.id
    life.book.note(BEGUN, job.queue, id_, attempt=job.attempt, payload=payload, job=job.id)
    return id_


def _verdict(job: Job | ClaimedJob) -> str:
    if job.queue in features.PACKED:
        fate = features.fate_in_pack(job.payload.decode())
    else:
        fate = str(job.headers["fate"]) if job.queue == features.FAILING else ""
    if fate == REJECT or (fate == ROLLBACK and job.attempt == 1):
        return fate
    return {features.FIRST: FORWARD, features.PARENTS: FANOUT}.get(job.queue, COMMIT)


def _claim(life: Life) -> None:
    with Client(endpoint=life.endpoints) as client:
        while not life.over.is_set():
            for name in (features.CLAIMED, features.SHORT, features.BURSTS):
                try:
                    _settle_claim(life, client, name)
                except SluiceError:
                    life.over.wait(0.2)


def _settle_claim(life: Life, client: Client, name: str) -> None:
    with client.jobs.reserve(name, _CLAIM, wait=0.5) as claim:
        for job in claim.jobs:
            id_, verdict = _begin(life, job), _verdict(job)
            life.book.note(ENDED, name, id_, verdict=verdict)
            try:
                match verdict:
                    case "reject":
                        job.reject("as it was pushed to be")
                    case "rollback":
                        job.retry("its first attempt", 0.1)
                        continue
                    case _:
                        job.commit()
            except (LeaseLostError, UncertainError):
                continue
            life.book.note(ACKNOWLEDGED, name, id_, attempt=job.attempt)


# ------------------------------------------------------------------ plain sockets


def plain_worker(life: Life) -> None:
    """Work by REP sockets, by PULL sockets that commit, and by PULL sockets that say nothing."""
    with zmq.Context() as context:
        life.begin(_reply, life, context)
        life.begin(_pull, life, context)
        _receive(life, context)
        life.wait()


def _connected(context: zmq.Context[zmq.Socket[bytes]], kind: int, *addresses: str) -> zmq.Socket[bytes]:
    """Return a socket that works at these doors; what it says at its end is sent."""
    socket = context.socket(kind)
    socket.rcvhwm, socket.linger, socket.rcvtimeo, socket.sndtimeo = 1, 1000, 200, 1000
    socket.heartbeat_ivl, socket.heartbeat_timeout = 2000, 6000
    for address in addresses:
        socket.connect(address)
    return socket


def _reply(life: Life, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    doors = [doors[f"{features.ASKED}.backend"] for doors in life.doors]
    with _connected(context, zmq.REP, *doors) as rep:
        while not life.over.is_set():
            try:
                frames = rep.recv_multipart()
            except zmq.Again:
                continue
            _work(life, features.ASKED, *frames)
            rep.send_multipart([b"COMMIT", features.answer_to(frames[2])])


def _pull(life: Life, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """Work for each broker by a pair of sockets: a receipt is good at the broker that gave it."""
    poller, commits = zmq.Poller(), {}
    for doors in life.doors:
        jobs = _connected(context, zmq.PULL, doors[f"{features.PULLED}.backend"])
        commits[jobs] = _connected(context, zmq.PUSH, doors[f"{features.PULLED}.commit"])
        poller.register(jobs, zmq.POLLIN)
    while not life.over.is_set():
        for jobs, _ in poller.poll(200):
            receipt, *frames = jobs.recv_multipart()
            _work(life, features.PULLED, *frames)
            try:
                commits[jobs].send_multipart([b"COMMIT", receipt])
            except zmq.Again:  # that broker is away: its job goes to another worker
                continue
    for socket in (*commits, *commits.values()):
        socket.close()


def _receive(life: Life, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    doors = [doors[f"{features.RECEIVED}.backend"] for doors in life.doors]
    with _connected(context, zmq.PULL, *doors) as pull:
        while True:  # to the end of what its ZeroMQ has taken: those jobs are done for the broker
            try:
                frames = pull.recv_multipart()
            except zmq.Again:
                if life.over.is_set():
                    return
                continue
            _work(life, features.RECEIVED, *frames)


def _work(life: Life, name: str, id_: bytes, headers: bytes, payload: bytes) -> None:
    attempt = json.loads(headers)["attempt"]
    life.book.note(BEGUN, name, id_.decode(), attempt=attempt, payload=payload.decode())
    time.sleep(life.random.uniform(0.1, 1.0) * features.ALL[name].work)
    life.book.note(ENDED, name, id_.decode(), verdict=COMMIT)
