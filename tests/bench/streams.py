"""What streams do beside queues, measured in one run: ``python tests/bench/streams.py``.

Confirmed messages a second, pipelined, of 200 bytes, by one publisher, and jobs by one producer; replay of
them all by one reader, and the rate at which one worker drains the queue; from a PUB socket to a SUB socket
on an idle stream, beside one majority insert where there is ``--uri``; one stream to one and to ten
SUB sockets. On an embedded MongoDB unless ``--uri`` names one.
"""

from __future__ import annotations

import argparse
import secrets
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import zmq
from pymongo import MongoClient, WriteConcern

from launcher import BrokerProcess
from sluicemq import Producer, Publisher, Reader, Worker

ANY_PORT = "tcp://127.0.0.1:0"
PAYLOAD = secrets.token_bytes(200)
FORWARDER = {
    "kind": "forwarder",
    "stream": "live",
    "frontend": ANY_PORT,
    "backend": ANY_PORT,
    "hwm": 1_000_000,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--uri")
    options = parser.parse_args()
    config: dict[str, Any] = {"devices": [FORWARDER]}
    with BrokerProcess(options.uri, f"bench-{secrets.token_hex(4)}", config=config) as broker:
        for turn in range(options.rounds):
            pushed = push(broker, options.jobs)
            published = publish(broker, f"s{turn}", options.messages)
            print(f"publish {published:,.0f}/s, push {pushed:,.0f}/s: {published / pushed:.1f}x", flush=True)
            drained = drain(broker, options.jobs)
            replayed = replay(broker, f"s{turn}", options.messages)
            print(f"replay {replayed:,.0f}/s, drain {drained:,.0f}/s: {replayed / drained:.1f}x", flush=True)
        one, ten = fan_out(broker, 1), fan_out(broker, 10)
        print(f"delivered to 1 SUB {one:,.0f}/s, to 10 {ten:,.0f}/s: {ten / one:.1f}x", flush=True)
        latency(broker, options.uri)


def push(broker: BrokerProcess, count: int) -> float:
    began = time.perf_counter()
    with Producer(broker.doors["smq"]) as producer:
        for _ in range(count):
            producer.push("bench", PAYLOAD)
    return count / (time.perf_counter() - began)


def publish(broker: BrokerProcess, stream: str, count: int) -> float:
    began = time.perf_counter()
    with Publisher(broker.doors["smq"]) as publisher:
        for _ in range(count):
            publisher.publish(stream, "a.topic", PAYLOAD)
    return count / (time.perf_counter() - began)


def drain(broker: BrokerProcess, count: int) -> float:
    left, over = [count], threading.Event()

    def handler(_job: object) -> None:
        left[0] -= 1
        if not left[0]:
            over.set()

    began = time.perf_counter()
    with Worker(broker.doors["smq"], "bench", handler, prefetch=1000):
        over.wait(300)
    return count / (time.perf_counter() - began)


def replay(broker: BrokerProcess, stream: str, count: int) -> float:
    began = time.perf_counter()
    with Reader(broker.doors["smq"], stream) as reader:
        read = sum(1 for _ in reader)
    assert read == count, read
    return count / (time.perf_counter() - began)


def sockets(broker: BrokerProcess, subscribers: int) -> tuple[Any, list[Any]]:
    (device,) = [each for each in broker.devices if each.get("stream") == "live"]
    context: Any = zmq.Context.instance()
    pub, subs = context.socket(zmq.PUB), [context.socket(zmq.SUB) for _ in range(subscribers)]
    pub.sndhwm = 0
    pub.connect(device["frontend"][0])
    for each in subs:
        each.rcvhwm = 0
        each.connect(device["backend"][0])
        each.subscribe(b"")
    while not all(each.poll(20) for each in subs):
        pub.send_multipart([b"probe", b""])
    for each in subs:
        while each.poll(300):
            each.recv_multipart()
    return pub, subs


def fan_out(broker: BrokerProcess, subscribers: int, count: int = 50_000) -> float:
    pub, subs = sockets(broker, subscribers)
    got = [0] * subscribers

    def receive(at: int) -> None:
        while got[at] < count and subs[at].poll(10_000):
            subs[at].recv_multipart()
            got[at] += 1

    threads = [threading.Thread(target=receive, args=(at,)) for at in range(subscribers)]
    began = time.perf_counter()
    for each in threads:
        each.start()
    for _ in range(count):
        pub.send_multipart([b"t", PAYLOAD])
    for each in threads:
        each.join()
    took = time.perf_counter() - began
    for each in (pub, *subs):
        each.close(0)
    return sum(got) / took


def latency(broker: BrokerProcess, uri: str | None, count: int = 200) -> None:
    pub, (sub,) = sockets(broker, 1)
    ways: list[float] = []
    for _ in range(count):
        began = time.perf_counter()
        pub.send_multipart([b"t", PAYLOAD])
        sub.recv_multipart()
        ways.append(time.perf_counter() - began)
        time.sleep(0.02)
    line = f"PUB to SUB, idle: p50 {1000 * statistics.median(ways):.2f} ms"
    if uri:
        with MongoClient[dict[str, Any]](uri) as client:
            plain = client["bench"].get_collection("plain", write_concern=WriteConcern("majority"))
            inserts = []
            for _ in range(count):
                began = time.perf_counter()
                plain.insert_one({"payload": PAYLOAD})
                inserts.append(time.perf_counter() - began)
                time.sleep(0.02)
            client.drop_database("bench")
        line += f", one majority insert {1000 * statistics.median(inserts):.2f} ms"
        line += f": {statistics.median(ways) / statistics.median(inserts):.2f}x"
    print(line, flush=True)


if __name__ == "__main__":
    main()
