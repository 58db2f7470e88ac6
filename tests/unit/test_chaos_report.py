"""The page of a chaos run shows its faults, its figures and its breaches, whatever stands in them."""

import json
from pathlib import Path

from chaos import features, report
from chaos.books import Book
from chaos.breach import Breach
from chaos.figures import Figures


def a_run(folder: Path) -> Path:
    book = Book(folder / "books", "worker-1")
    for number in range(3):
        book.note("pushed", features.SHORT, f"s{number}")
        book.note("confirmed", features.SHORT, f"s{number}")
        book.note("begun", features.SHORT, f"s{number}", attempt=1, payload=f"s{number}")
        book.note("ended", features.SHORT, f"s{number}", verdict="commit")
    at = json.loads((folder / "books" / "worker-1.jsonl").read_text().splitlines()[0])[0]
    events = [
        {"at": at + 1, "what": "packed", "packs": 3, "jobs": 768, "lifted": 12},
        {"at": at, "what": "begin", "fault": "kill -9 of a broker", "victim": "broker <1>"},
        {"at": at + 0.5, "what": "end", "fault": "kill -9 of a broker", "victim": "broker <1>"},
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (folder / "samples.jsonl").write_text(json.dumps([at + 0.2, 1, 77, 50 * 2**20, 20]) + "\n")
    return folder


def test_a_page_of_a_run_that_kept_all_promises_says_so(tmp_path: Path) -> None:
    report.write(tmp_path / "page.html", a_run(tmp_path), [], "Chaos, seed 7")
    page = (tmp_path / "page.html").read_text()
    assert "every promise was kept" in page
    assert "<title>Chaos, seed 7</title>" in page
    assert "<b>768</b><span>jobs in packs</span>" in page
    assert "<b>12</b><span>jobs lifted out of packs</span>" in page
    assert "kill -9 of a broker, broker &lt;1&gt;: from 0:00 for 0.5 s" in page


def test_a_breach_is_shown_with_its_evidence_and_its_promise(tmp_path: Path) -> None:
    breach = Breach("lost", "job <a> was confirmed", ["12.3 producer-1 pushed & confirmed"])
    report.write(tmp_path / "page.html", a_run(tmp_path), [breach])
    page = (tmp_path / "page.html").read_text()
    assert "1 breach<" in page
    assert "job &lt;a&gt; was confirmed" in page
    assert "pushed &amp; confirmed" in page
    assert "✗</b> nothing confirmed is lost" in page


def test_a_run_in_which_nothing_happened_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    report.write(tmp_path / "page.html", tmp_path, [])
    assert "<svg" in (tmp_path / "page.html").read_text()


def test_the_longest_rest_is_that_between_two_jobs_that_were_done() -> None:
    its = Figures(0.0, [], [1, 0, 0, 2, 0, 0, 0, 1], [], [], {})
    assert its.longest_rest == (3, 4)
