"""Publisher, Reader and Subscription in a forked child: anew, or refused; the parent goes on undisturbed."""

from clients.test_forks import MODES, run
from sluicemq import Publisher, Reader

IMPORTS = """
from sluicemq import Publisher, Reader
stream = "STREAM"
"""


def forked(program: str, endpoint: str, stream: str, mode: str) -> list[str]:
    return run(IMPORTS.replace("STREAM", stream) + program, endpoint, mode)


@MODES
def test_a_publisher_publishes_in_child_and_parent(endpoint: str, stream: str, mode: str) -> None:
    printed = forked(
        """
publisher = Publisher(endpoint)
publisher.publish(stream, "before", b"x").wait(60)
def child():
    for number in range(500):
        publisher.publish(stream, "child", b"%d" % number)
    publisher.close()
    print(publisher.unconfirmed)
print(in_child(child))
for number in range(500):
    publisher.publish(stream, "parent", b"%d" % number)
publisher.close()
print(publisher.unconfirmed)
""",
        endpoint,
        stream,
        mode,
    )
    assert printed == ["0", "0", "0"]
    with Reader(stream, endpoint=endpoint) as reader:
        found = [(message.topic, message.payload) for message in reader]
    expected = [(who, b"%d" % number) for who in ("child", "parent") for number in range(500)]
    assert found == [("before", b"x"), *expected]


@MODES
def test_both_publish_at_once_and_each_hears_its_own(endpoint: str, stream: str, mode: str) -> None:
    """Batches have numbers of their publisher: a child with its parent's name would be taken for it."""
    forked(
        """
publisher = Publisher(endpoint)
publisher.publish(stream, "before", b"x").wait(60)
pid = os.fork()
for number in range(300):
    publisher.publish(stream, "parent" if pid else "child", b"%d" % number)
publisher.close()
if not pid:
    os._exit(0)
os.waitpid(pid, 0)
""",
        endpoint,
        stream,
        mode,
    )
    with Reader(stream, endpoint=endpoint) as reader:
        found = list(reader)
    assert [message.sequence for message in found] == list(range(1, 602))
    for who in ("child", "parent"):
        assert [message.payload for message in found if message.topic == who] == [
            b"%d" % at for at in range(300)
        ]


@MODES
def test_a_reader_is_its_parents_and_reads_on_there(endpoint: str, stream: str, mode: str) -> None:
    with Publisher(endpoint=endpoint) as publisher:
        for number in range(10):
            publisher.publish(stream, "a", b"%d" % number)
    printed = forked(
        """
reader = Reader(endpoint, stream, follow=True)
print(reader.read(60).sequence)
def child():
    print(error_of(reader.read, 60))
    with Reader(endpoint, stream) as another:
        print(sum(1 for _ in another))
print(in_child(child))
print([reader.read(60).sequence for _ in range(9)])
reader.close()
""",
        endpoint,
        stream,
        mode,
    )
    assert printed == ["1", "ForkedError", "10", "0", str(list(range(2, 11)))]
