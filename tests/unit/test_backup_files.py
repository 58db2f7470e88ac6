"""Files of backups: what is in them, what is told of a damaged one, which of them stay."""

import fcntl
import gzip
import stat
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

import bson
import pytest

from sluicemq_broker.backup import Refusal
from sluicemq_broker.backup.archive import ArchiveReader, ArchiveWriter, Filed, documents_file, metadata_file
from sluicemq_broker.backup.folder import BackupFolder
from support.old_build import SAFELY

ABOUT: Final = {"database": "sluicemq", "schemas": {"sluicemq": 3}}
JOBS: Final = [bson.encode({"_id": f"job {number}", "payload": bytes(100)}) for number in range(50)]
FILE: Final = "dump/sluicemq/queue.mail.bson.gz"
MOMENT: Final = 1_795_672_140.0


@contextmanager
def writing(path: Path) -> Iterator[ArchiveWriter]:
    with path.open("xb+") as file, closing(ArchiveWriter(file, MOMENT)) as writer:
        yield writer


def written(path: Path) -> Path:
    with writing(path) as writer:
        with writer.adding(FILE) as take:
            for at in range(0, 50, 10):
                take(b"".join(JOBS[at : at + 10]))
        writer.add("dump/sluicemq/queue.mail.metadata.json.gz", b"{}")
        writer.end(ABOUT)
    return path


def test_a_backup_is_read_as_it_was_written(tmp_path: Path) -> None:
    with ArchiveReader(written(tmp_path / "a.tar")) as reader:
        assert reader.manifest["schemas"] == {"sluicemq": 3}
        assert [(problem.name, problem.documents) for problem in reader.check()] == [
            (FILE, 50), ("dump/sluicemq/queue.mail.metadata.json.gz", 0),
        ]  # fmt: skip
        assert list(reader.documents(FILE)) == JOBS
        assert reader.text("dump/sluicemq/queue.mail.metadata.json.gz") == b"{}"


def test_tar_and_gzip_make_files_of_it_that_have_the_form_of_mongodump(tmp_path: Path) -> None:
    with tarfile.open(written(tmp_path / "a.tar")) as tar:
        tar.extractall(tmp_path, **SAFELY)  # noqa: S202 - made by this test
    with gzip.open(tmp_path / FILE) as plain:
        assert bson.decode_all(plain.read()) == [bson.decode(job) for job in JOBS]


def test_names_are_written_as_mongodump_does() -> None:
    assert documents_file("sluicemq", "queue.a b/ü$@") == "dump/sluicemq/queue.a%20b%2F%C3%BC$@.bson.gz"
    assert metadata_file("x", "queue.mail") == "dump/x/queue.mail.metadata.json.gz"


def test_a_file_of_an_empty_collection_is_empty(tmp_path: Path) -> None:
    with writing(tmp_path / "a.tar") as writer:
        with writer.adding(FILE):
            pass
        writer.end(ABOUT)
    with ArchiveReader(tmp_path / "a.tar") as reader:
        assert list(reader.documents(FILE)) == []
        assert reader.files[FILE].documents == 0


def test_what_ends_with_an_error_is_not_in_it(tmp_path: Path) -> None:
    with writing(tmp_path / "a.tar") as writer:
        with suppress(KeyError), writer.adding("dump/sluicemq/queue.gone.bson.gz") as take:
            for _ in range(10):
                take(JOBS[0])
            raise KeyError
        with writer.adding(FILE) as take:
            take(JOBS[0])
        writer.end(ABOUT)
    with ArchiveReader(tmp_path / "a.tar") as reader:
        assert list(reader.files) == [FILE]
        assert list(reader.documents(FILE)) == JOBS[:1]
    with tarfile.open(tmp_path / "a.tar") as tar:
        assert tar.getnames() == [FILE, "manifest.json"]


def problem_of(path: Path) -> str:
    """What is told of a backup when it is checked."""
    with pytest.raises(Refusal) as refused, ArchiveReader(path) as reader:
        for _ in reader.check():
            pass
    assert str(path) in str(refused.value)
    return str(refused.value)


def test_any_other_byte_of_a_backup_is_found(tmp_path: Path) -> None:
    whole = written(tmp_path / "a.tar").read_bytes()
    end = whole.index(b"manifest.json") + 512
    stored = [at for at, byte in enumerate(whole[:end]) if byte]  # nobody reads what fills up a block
    for at in stored[:: len(stored) // 100]:
        damaged = tmp_path / "damaged.tar"
        damaged.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        assert problem_of(damaged), f"byte {at} of {len(whole)}"


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tar")
    data = bytearray(path.read_bytes())
    data[600] ^= 1
    path.write_bytes(data)
    assert f"is damaged: {FILE} is not as it was written" in problem_of(path)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.8, 0.95])
def test_a_part_of_a_backup_is_none(tmp_path: Path, share: float) -> None:
    path = written(tmp_path / "a.tar")
    data = path.read_bytes().rstrip(b"\0")
    path.write_bytes(data[: int(len(data) * share)])
    assert "whole" in problem_of(path) or "is no backup" in problem_of(path)


def test_a_manifest_that_somebody_has_changed_is_found(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tar")
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"sluicemq": 3', b'"sluicemq": 2'))
    assert "has no whole manifest" in problem_of(path)


def test_a_backup_of_a_later_form_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with writing(path) as writer:
        writer.end({"format": 2})
    assert "written by a newer SluiceMQ" in problem_of(path)


def test_how_far_a_file_is_can_be_told(tmp_path: Path) -> None:
    with writing(tmp_path / "a.tar") as writer, writer.adding(FILE) as take:
        done: Filed = take(b"".join(JOBS[:7]))
    assert (done.documents, done.bytes) == (7, 7 * len(JOBS[0]))


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def add(backups: BackupFolder, at: float) -> Path:
    with backups.writing(at) as (file, path):
        file.write(b"whole")
    return path


def test_a_backup_is_for_its_owner_alone_and_has_its_moment_as_its_name(tmp_path: Path) -> None:
    backups = BackupFolder(tmp_path / "new" / "folder", "sluicemq")
    backups.prepare()
    path = add(backups, MOMENT)
    assert path.name == "sluicemq-20261126T054900Z.tar"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert add(backups, MOMENT).name == "sluicemq-20261126T054900Z-2.tar"
    assert path.read_bytes() == b"whole"


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    backups = BackupFolder(tmp_path, "sluicemq")
    with suppress(KeyError), backups.writing(MOMENT) as (file, path):
        file.write(b"half")
        assert names(tmp_path) == [f"{path.name}.part"]
        raise KeyError
    assert names(tmp_path) == []


def test_a_part_that_was_left_is_removed_and_one_that_is_written_now_stays(tmp_path: Path) -> None:
    left, now = (tmp_path / f"sluicemq-20261126T05480{n}Z.tar.part" for n in (1, 2))
    left.touch()
    with now.open("xb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        BackupFolder(tmp_path, "sluicemq").prepare()
        assert names(tmp_path) == [now.name]


def test_the_newest_stay_and_other_files_do(tmp_path: Path) -> None:
    others = [
        "notes.txt",
        "other-20201126T054900Z.tar",
        "sluicemq-x.tar",
        "sluicemq-20201126T054900Z.tar.part",
    ]
    for name in others:
        (tmp_path / name).touch()
    backups = BackupFolder(tmp_path, "sluicemq")
    paths = [add(backups, MOMENT + 86_400 * day) for day in range(4)]
    assert backups.keep(2, paths[-1]) == paths[:2]
    assert names(tmp_path) == sorted([*others, *(path.name for path in paths[2:])])
    assert backups.keep(2, paths[-1]) == []


def test_the_one_that_was_just_made_stays_also_if_the_clock_was_set_back(tmp_path: Path) -> None:
    backups = BackupFolder(tmp_path, "sluicemq")
    later, now = add(backups, MOMENT + 86_400), add(backups, MOMENT)
    assert backups.keep(1, now) == [later]
    assert names(tmp_path) == [now.name]
