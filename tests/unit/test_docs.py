"""The documents name what is there: files, headings, commands, figures, bytes."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from reference import TABLES
from sluicemq.cli.former import WORDS as FORMER_WORDS
from sluicemq.installed import to_install
from sluicemq.protocol import wire
from support.plain_words import WORDS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "clients").glob("*/README.md")),
]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
#: Where a file may lie that a page names by its room alone.
PLACES = ["", "docs", "broker/sluicemq_broker", "devices/sluicemq_devices", "clients/sluicemq", "tests"]
#: Where the project says that its files can be read, for links that work on a package index too.
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
BASE = PROJECT["project"]["urls"]["Source"] + "/blob/main/"


def read(name: str) -> str:
    return (ROOT / name).read_text()


# Those from a page of docs/ to another are followed by the strict build of the site, ./deploy/docs.

DOCS = ROOT / "docs"


def links(page: Path) -> list[str]:
    """What a page links to, without what stands in its blocks of code."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"\]\(([^)\s]+)\)", text)


def target(page: Path, link: str) -> tuple[Path, str] | None:
    """The file of this project that a link means, and the heading in it; None: elsewhere, or the build's."""
    path, _, heading = link.partition("#")
    if path.startswith(BASE):
        return ROOT / path.removeprefix(BASE), heading
    if "://" in path:
        return None
    file = (page.parent / path if path else page).resolve()
    return None if page.parent == file.parent == DOCS else (file, heading)


def anchors(page: Path) -> set[str]:
    """The headings of a page, as a link names them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return {slug(title) for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


def slug(title: str) -> str:
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_file_that_a_page_links_or_names_is_there(page: Path) -> None:
    linked = [linked_to[0] for link in links(page) if (linked_to := target(page, link))]
    missing = [str(file) for file in linked if not file.exists()]
    named = re.findall(r"`(\w[\w/-]*/[\w-]+\.(?:py|md|toml))`", page.read_text())
    missing += [name for name in named if not any((ROOT / place / name).exists() for place in PLACES)]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_heading_that_a_page_links_is_there(page: Path) -> None:
    found = [linked_to for link in links(page) if (linked_to := target(page, link))]
    named = [link for link in found if link[1]]
    missing = [f"{file}#{heading}" for file, heading in named if heading not in anchors(file)]
    assert missing == []


def test_the_links_of_the_readme_work_on_a_package_index() -> None:
    assert [link for link in links(ROOT / "README.md") if not link.startswith(("https://", "#"))] == []


def test_a_release_changes_one_line_of_the_documents_and_one_of_the_code() -> None:
    """``pip install '.[embedded]'`` becomes ``pip install 'sluicemq[embedded]'``, and ``SOURCE`` too."""
    pages = [page for page in PAGES if page.name != "CHANGELOG.md"]
    lines = [line for page in pages for line in page.read_text().splitlines() if "pip install '" in line]
    assert lines == [to_install("embedded").removesuffix(" in a checkout of SluiceMQ")]
    code = [*(ROOT / "clients").rglob("*.py"), *(ROOT / "broker").rglob("*.py")]
    assert [file.name for file in code if "pip install" in file.read_text()] == ["installed.py"]


def test_the_index_has_every_page() -> None:
    """The navigation of the site is held to all pages by its build."""
    listed = set(re.findall(r"^- \[[\w.-]+\]\(([\w-]+\.md)\)", read("docs/README.md"), re.MULTILINE))
    there = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert listed == there


#: Pages for people, without those that are made of the code, or written one line at a time.
WRITTEN = [page for page in PAGES if page.name not in {"CHANGELOG.md", "CONTRIBUTING.md"}]
LONGEST_SENTENCE = 45


def sentences(page: Path) -> Iterator[str]:
    """The sentences of a page: of its paragraphs, items and cells, without code and targets of links."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`\n]*`", "`", text))
    for line in text.splitlines():
        for part in line.split(" | ") if line.startswith("|") else [line]:
            yield from re.split(r"(?<=[.:;!?])\s+", part)


@pytest.mark.parametrize("page", WRITTEN, ids=[str(page.relative_to(ROOT)) for page in WRITTEN])
def test_a_page_is_in_plain_words_and_short_sentences(page: Path) -> None:
    assert [sentence for sentence in sentences(page) if WORDS.search(sentence)] == []
    assert [sentence for sentence in sentences(page) if len(sentence.split()) > LONGEST_SENTENCE] == []


@pytest.mark.parametrize("package", ["sluicemq_broker", "sluicemq_devices"])
def test_the_rooms_are_drawn_as_the_linter_holds_them(package: str) -> None:
    [contract] = [row for row in PROJECT["tool"]["importlinter"]["contracts"] if row["type"] == "rooms"]
    [stair] = [text.partition(": ")[2] for text in contract["stairs"] if text.startswith(f"{package}:")]
    drawn = read("docs/architecture.md")
    assert f"    {stair.replace(', ', '  ')}\n" in read("CONTRIBUTING.md")
    for room in re.split(r"[,|] ", stair.replace(" |", ",")):
        assert re.search(rf"^(\w.* )?{room} ", drawn, re.MULTILINE), room


#: Tests that run samples of the documents.
RUNS = (
    "tests/integration/test_readme.py",
    "tests/integration/test_sql_outbox.py",
    "tests/interop/test_many_brokers.py",
)


def test_every_python_sample_is_run() -> None:
    runs = "".join(map(read, RUNS))
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    above = [line for page in pages for line in re.findall(r"(.*)\n```python\n", page.read_text())]
    assert len(above) > 10
    above = [line for line in above if not line.startswith("<!-- save: ")]  # run by test_tutorials.py
    marks = [re.fullmatch(r"<!-- (.+) -->", line) for line in above]
    assert [line for line, mark in zip(above, marks, strict=True) if not mark] == []
    assert [mark[1] for mark in marks if mark and f'"{mark[1]}"' not in runs] == []


def test_the_figures_of_the_readme_are_those_of_the_performance_page() -> None:
    shown = _rows(read("README.md").partition("| SluiceMQ |")[2].partition("\n\n")[0], "| SluiceMQ |")
    measured = _rows(read("docs/performance.md").partition("## Beside other systems")[2])
    assert len(shown) == 5
    for system, figures in shown:
        assert any(name == system and figures <= there for name, there in measured), system


def _rows(text: str, first: str = "") -> list[tuple[str, set[str]]]:
    """The rows of a table: which system, and its figures (not those in brackets, nor of its version)."""
    rows = [row.strip(" |").split(" | ") for row in (first + text).splitlines() if row.startswith("| ")]
    return [
        (row[0].split()[0], {cell.split()[0] for cell in row[2:] if cell[:1].isdigit()})
        for row in rows
        if row
    ]


def test_every_command_that_is_shown_is_one() -> None:
    said = {word for page in PAGES for word in re.findall(r"\bsluicemq ([a-z][a-z-]*)", code_of(page))}
    assert said >= {"serve", "push", "work", "queues"}
    shown = subprocess.run(
        [Path(sys.executable).parent / "sluicemq", "--help"], capture_output=True, check=True
    )
    commands = re.findall(r"^  ([a-z][a-z-]*) ", shown.stdout.decode(), re.MULTILINE)
    assert said - set(commands) - FORMER_WORDS == set()  # former ones, until no page shows them


def code_of(page: Path) -> str:
    """What a page has in blocks and spans of code."""
    return "\n".join(re.findall(r"^```sh\n.*?^```|`[^`\n]+`", page.read_text(), re.DOTALL | re.MULTILINE))


class Shown(NamedTuple):
    """A message as docs/smq1.md has it: who sends it, what, and its frames."""

    arrow: str
    verb: str
    array: list[Any]
    frames: list[bytes]


def messages(mark: str = "smq1(?: session)?") -> Iterator[Shown]:
    """The messages in the blocks under this mark."""
    for block in re.findall(rf"<!-- {mark} -->\n```text\n(.*?)```", read("docs/smq1.md"), re.DOTALL):
        for example in re.findall(r"^([→←]) ([A-Z]+) (\[.*\])\n((?:    .*\n)+)", block, re.MULTILINE):
            arrow, verb, array, shown = example
            yield Shown(arrow, verb, value(array), [bytes.fromhex(part) for part in shown.split("|")])


def value(text: str) -> list[Any]:
    """What is meant by an array as it is written there."""
    known: dict[str, Any] = {"__builtins__": {}, "nil": None, "true": True, "false": False}
    array: list[Any] = eval(text, known)  # noqa: S307 - a page of ours
    return array


def test_every_message_of_smq1_has_the_bytes_that_are_shown() -> None:
    shown = list(messages())
    assert len(shown) > 15
    for example in shown:
        assert wire.encode(example.verb.encode(), *example.array) == example.frames, example.array
    lines = re.findall(r"^[→←] ", read("docs/smq1.md"), re.MULTILINE)
    assert len(lines) == len(shown)


def test_every_verb_of_smq1_is_described() -> None:
    """By a heading, or by a row of a table, which may have two verbs."""
    page = re.sub(
        r"^::: reference (\w+-verbs)$",
        lambda found: TABLES[found[1]](),
        read("docs/smq1.md"),
        flags=re.MULTILINE,
    )
    rows = re.findall(r"^\| (`[A-Z]+`(?:, `[A-Z]+`)*) \| `\[n", page, re.MULTILINE)
    described = {*re.findall(r"^### ([A-Z]+)$", page, re.MULTILINE), *re.findall(r"[A-Z]+", " ".join(rows))}
    assert described == {var.decode() for var in vars(wire).values() if isinstance(var, bytes)} - {
        *("SMQ1", "OK", "ERROR")
    }
