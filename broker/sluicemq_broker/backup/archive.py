"""The file of a backup: a tar of what mongodump --gzip writes, and a manifest at its end.

::

    dump/DATABASE/COLLECTION.bson.gz             documents, one behind the other
    dump/DATABASE/COLLECTION.metadata.json.gz    options and indexes
    manifest.json                                {"manifest": {...}, "sha256": its sum}

So ``tar -xf FILE && mongorestore --gzip dump`` reads it, too. Each batch of documents is compressed by
itself, by two threads: gzip reads such parts as one. The length of a file in a tar stands before it, and is
written when it is known. Memory: a few batches of 16 MB. A file without its manifest is not whole.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, NamedTuple, Self
from urllib.parse import quote

from sluicemq_broker.backup.refusal import Refusal

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
_ROOT: Final = "dump"
_DOCUMENTS: Final = ".bson.gz"
#: Characters that mongodump leaves in the name of a file.
_PLAIN: Final = "-_.~$&+=:@"
#: Errors of a file that is not as it was written.
_DAMAGES: Final = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError, KeyError, TypeError)


class Filed(NamedTuple):
    """A file of a backup: documents and bytes before they were compressed, and the sum of what is stored."""

    name: str
    documents: int
    bytes: int
    sha256: str


def documents_file(database: str, collection: str) -> str:
    """Return the name of the file with the documents of a collection."""
    return f"{_ROOT}/{quote(database, _PLAIN)}/{quote(collection, _PLAIN)}{_DOCUMENTS}"


def metadata_file(database: str, collection: str) -> str:
    """Return the name of the file with the options and indexes of a collection."""
    return documents_file(database, collection).removesuffix(_DOCUMENTS) + ".metadata.json.gz"


class ArchiveWriter:
    """Writes the files of a backup into an empty file."""

    def __init__(self, file: BinaryIO, mtime: float) -> None:
        self._file = file
        self._mtime = int(mtime)
        self._pool = ThreadPoolExecutor(2)  # threads that compress
        self._files: list[Filed] = []

    @contextmanager
    def adding(self, name: str) -> Iterator[Callable[[bytes], Filed]]:
        """Add documents; yields what takes a batch, and returns how far the file is. An error removes it."""
        start = self._file.tell()
        self._file.write(self._header(name, 0))
        part = _Part(name, self._file, self._pool)
        try:
            yield part.take
            part.end()
        except BaseException:
            self._file.seek(start)
            self._file.truncate()
            raise
        end = self._file.tell()
        self._file.seek(start)
        self._file.write(self._header(name, part.stored))
        self._file.seek(end)
        self._file.write(bytes(-part.stored % tarfile.BLOCKSIZE))
        self._files.append(part.filed())

    def add(self, name: str, text: bytes) -> None:
        """Add a file that is no documents."""
        data = _compressed(text)
        self._write(name, data)
        self._files.append(Filed(name, 0, len(text), hashlib.sha256(data).hexdigest()))

    def end(self, about: Mapping[str, Any]) -> None:
        """Add the manifest, and the end of the tar."""
        manifest = {"format": FORMAT, **about, "files": [file._asdict() for file in self._files]}
        self._write(MANIFEST, json.dumps({"manifest": manifest, "sha256": _sum_of(manifest)}).encode())
        self._file.write(bytes(2 * tarfile.BLOCKSIZE))

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)

    def _write(self, name: str, data: bytes) -> None:
        self._file.write(self._header(name, len(data)) + data + bytes(-len(data) % tarfile.BLOCKSIZE))

    def _header(self, name: str, size: int) -> bytes:
        """Return the header of a file; its length depends on the name alone."""
        info = tarfile.TarInfo(name)
        info.size, info.mtime, info.mode = size, self._mtime, 0o600
        return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


class _Part:
    """One file of documents while it is written."""

    def __init__(self, name: str, file: BinaryIO, pool: ThreadPoolExecutor) -> None:
        self._name = name
        self._file = file
        self._pool = pool
        self._waiting: deque[Future[bytes]] = deque()
        self._documents = self._bytes = self.stored = 0
        self._sum = hashlib.sha256()

    def take(self, batch: bytes) -> Filed:
        self._bytes += len(batch)
        self._documents += sum(1 for _ in _documents(batch))
        self._waiting.append(self._pool.submit(_compressed, batch))
        # Batches of up to 16 MB that wait for them
        if len(self._waiting) > 3:
            self._store(self._waiting.popleft().result())
        return self.filed()

    def end(self) -> None:
        if not self._bytes:
            self._store(_compressed(b""))
        while self._waiting:
            self._store(self._waiting.popleft().result())

    def filed(self) -> Filed:
        return Filed(self._name, self._documents, self._bytes, self._sum.hexdigest())

    def _store(self, data: bytes) -> None:
        self._file.write(data)
        self._sum.update(data)
        self.stored += len(data)


class ArchiveReader:
    """Reads a backup, of which nothing is believed before :meth:`check`; raises Refusal for a damaged one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._undamaged("is no backup, or not whole"):
            self._tar = tarfile.open(path, "r:")  # noqa: SIM115 - closed with this object
        with self._undamaged("has no whole manifest, so it is not a whole backup", self._tar):
            found = json.loads(self._stored(MANIFEST).read())
            self.manifest: dict[str, Any] = found["manifest"]
            if found["sha256"] != _sum_of(self.manifest):
                raise KeyError(MANIFEST)
            if self.manifest["format"] == FORMAT:
                self.files = {row["name"]: Filed(**row) for row in self.manifest["files"]}
        if self.manifest["format"] != FORMAT:
            self.close()
            raise Refusal(f"{path} was written by a newer SluiceMQ: install that version here, too")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._tar.close()

    def check(self) -> Iterator[Filed]:
        """Compare each file with its sum; yields those that are as they were written."""
        for file in self.files.values():
            with self._undamaged(f"is damaged: {file.name} can't be read"), self._stored(file.name) as stored:
                found = hashlib.sha256()
                while data := stored.read(1 << 20):
                    found.update(data)
            if found.hexdigest() != file.sha256:
                raise Refusal(f"{self._path} is damaged: {file.name} is not as it was written")
            yield file

    def text(self, name: str) -> bytes:
        """Return what :meth:`ArchiveWriter.add` has added."""
        with self._undamaged(f"is damaged: {name} can't be read"), gzip.open(self._stored(name)) as plain:
            return plain.read()

    def documents(self, name: str) -> Iterator[bytes]:
        """Yield the documents of a file."""
        with self._undamaged(f"is damaged: {name} can't be read"), gzip.open(self._stored(name)) as plain:
            while head := plain.read(4):
                length = _length(head)
                rest = plain.read(length - 4)
                if len(rest) != length - 4:
                    raise EOFError
                yield head + rest

    def _stored(self, name: str) -> IO[bytes]:
        found = self._tar.extractfile(name)
        if found is None:
            raise KeyError(name)
        return found

    @contextmanager
    def _undamaged(self, what: str, opened: tarfile.TarFile | None = None) -> Iterator[None]:
        try:
            yield
        except _DAMAGES as error:
            if opened:
                opened.close()
            raise Refusal(f"{self._path} {what}; use another backup") from error


def _documents(batch: bytes) -> Iterator[int]:
    """Yield where each document of a batch begins."""
    at = 0
    while at < len(batch):
        yield at
        at += _length(batch[at : at + 4])


def _length(head: bytes) -> int:
    length = int.from_bytes(head, "little")
    # The shortest document has its length, and a zero; the longest is what MongoDB takes, and a bit
    if len(head) != 4 or not 5 <= length <= 17 << 20:
        raise ValueError(f"a document of {length} bytes")
    return length


def _compressed(data: bytes) -> bytes:
    # The fastest level of zlib: three times as fast as its default, for a tenth more of bytes.
    return gzip.compress(data, 1, mtime=0)


def _sum_of(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
