"""The relay of an outbox in SQL: the order of its posts, when the broker has no room for one."""

import sqlite3
from contextlib import closing

from clients.scripted_broker import ScriptedBroker
from sluicemq import Producer, sql_outbox
from sluicemq.protocol import wire

#: More posts than one message holds.
POSTS = 400


def test_a_post_without_room_is_overtaken_by_none_of_its_queue(broker: ScriptedBroker) -> None:
    # Given posts of two queues, one of which has room again right behind a refusal
    taken: dict[str, list[bytes]] = {"narrow": [], "wide": []}
    rooms = iter([3])

    def push(message: object) -> list[list[object]]:
        queue, rows = message.fields  # type: ignore[attr-defined]
        room = next(rooms, len(rows)) if queue == "narrow" else len(rows)
        taken[queue] += [row[1] for row in rows[:room]]
        return [[at, "QUEUE_FULL", "there is no room"] for at in range(room, len(rows))]

    broker.on[wire.PUSH] = push
    pushed = [b"%d" % number for number in range(POSTS)]
    with closing(sqlite3.connect(":memory:")) as shop, Producer(endpoint=broker.endpoint) as producer:
        shop.execute(sql_outbox.SQLITE)
        for payload in pushed:
            for queue in taken:
                sql_outbox.push(shop.cursor(), queue, payload)
        shop.commit()
        relay = sql_outbox.Relay(lambda: shop, producer)
        assert relay.carry(shop) == POSTS + 3
        assert taken == {"narrow": pushed[:3], "wide": pushed}
        assert relay.carry(shop) == POSTS - 3
        assert taken == {"narrow": pushed, "wide": pushed}
        assert shop.execute("SELECT count(*) FROM sluicemq_outbox").fetchone() == (0,)
