"""``deploy/release``: what it writes beside the packages, and what it refuses."""

import io
import re
import shutil
import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from release_steps.building import differences, normalize
from release_steps.debian import SCRIPTS, configuration, debian_version, leave_out_where_it_was_built
from release_steps.papers import complete, section, write_notes, write_sums
from release_steps.trying import lowest_versions
from sluicemq.protocol.keys import KeyPair, write_key_file
from sluicemq.version import VERSION
from sluicemq_broker.config import load, problems_of_exposure

ROOT = Path(__file__).resolve().parents[2]
RELEASE = ROOT / "deploy" / "release"
DEBIAN = ROOT / "deploy" / "debian"
CHANGES = """# Changelog

## [Unreleased]

## [1.1.0] - 2026-12-01

### Added

- More ([page](docs/jobs.md#order), [elsewhere](https://example.com/x)).

## [1.0.0] - 2026-11-01

- All.
"""


def release(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([RELEASE, *words], capture_output=True, text=True, check=False)


def test_a_tag_must_be_that_of_the_version() -> None:
    assert release("--check-tag", f"v{VERSION}").returncode == 0
    for tag in (VERSION, "v99.0.0"):
        done = release("--check-tag", tag)
        assert (done.returncode, done.stderr.count(f"the tag {tag} is not v{VERSION}")) == (1, 1)


def test_a_folder_with_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    done = release("--out", tmp_path)
    assert (done.returncode, f"{tmp_path} is not empty" in done.stderr) == (1, True)
    assert (tmp_path / "mine").read_text() == "mine"


def test_the_notes_are_the_section_of_the_changelog_with_links_that_work_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    write_notes(tmp_path, tmp_path, "1.1.0")
    notes = (tmp_path / "RELEASE_NOTES.md").read_text()
    assert notes.startswith("# SluiceMQ 1.1.0\n\n### Added\n\n- More (")
    assert "- All." not in notes
    assert "/blob/v1.1.0/docs/jobs.md#order)" in notes
    assert all(link.startswith("https://") for link in re.findall(r"\]\(([^)]+)\)", notes))
    assert "(https://example.com/x)" in notes


@pytest.mark.parametrize("version", ["1.2.0", "Unreleased", "1.0"])
def test_a_version_without_a_dated_section_is_refused(version: str) -> None:
    with pytest.raises(SystemExit, match=re.escape(f"no section '## [{version}]")):
        section(CHANGES, version)


def test_the_sums_are_of_every_file_and_are_those_that_sha256sum_checks(tmp_path: Path) -> None:
    for name in ("b.whl", "a.tar.gz"):
        (tmp_path / name).write_text(name)
    for _ in range(2):  # the second time a file of sums is there
        write_sums(tmp_path)
    sums = (tmp_path / "SHA256SUMS").read_text()
    assert [line.split()[1] for line in sums.splitlines()] == ["a.tar.gz", "b.whl"]
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    assert subprocess.run(check, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    (tmp_path / "b.whl").write_text("other")
    assert subprocess.run(check, cwd=tmp_path, capture_output=True, check=False).returncode == 1


def test_a_bill_of_materials_names_no_folder_of_this_machine_and_all_packages_by_their_address() -> None:
    elsewhere = {"url": "https://example.com/x", "type": "website"}
    here = {"url": "file:///home/me/x.whl", "type": "distribution"}
    bench = {"name": "sluicemq-bench", "version": "1.1.0", "externalReferences": [here, elsewhere]}
    other = {"name": "y", "version": "2", "purl": "pkg:pypi/y@2?other"}
    bill = complete({"metadata": {"component": {"name": "sluicemq"}}, "components": [bench, other]}, "1.1.0")
    found = [(row["purl"], row["externalReferences"]) for row in bill["components"]]
    assert found == [("pkg:pypi/sluicemq-bench@1.1.0", [elsewhere]), ("pkg:pypi/y@2?other", [])]
    own = bill["metadata"]["component"]
    assert (own["version"], own["purl"]) == ("1.1.0", "pkg:pypi/sluicemq@1.1.0")


def pack(file: Path, names: list[str], mtime: int, mode: int) -> Path:
    with tarfile.open(file, "w:gz") as packed:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode, member.uname = len(name), mtime, mode, str(mtime)
            packed.addfile(member, io.BytesIO(name.encode()))
    return file


def test_an_sdist_has_the_same_bytes_whoever_packs_it_and_when(tmp_path: Path) -> None:
    one = pack(tmp_path / "one.tar.gz", ["x/a", "x/b"], 1_700_000_000, 0o664)
    other = pack(tmp_path / "other.tar.gz", ["x/b", "x/a"], 1_700_000_001, 0o600)
    for file in (one, other):
        normalize(file, 1_600_000_000)
    assert one.read_bytes() == other.read_bytes()
    assert one.read_bytes()[4:8] == (1_600_000_000).to_bytes(4, "little")  # gzip's own time
    with tarfile.open(one) as packed:
        found = {member.name: (member.mtime, member.mode, member.uname) for member in packed}
        assert found == dict.fromkeys(["x/a", "x/b"], (1_600_000_000, 0o644, ""))
        assert packed.extractfile("x/b").read() == b"x/b"  # type: ignore[union-attr]


def test_files_that_differ_or_are_only_in_one_folder_are_named(tmp_path: Path) -> None:
    files = ["a/same 1", "b/same 1", "a/other 1", "b/other 2", "a/alone 1"]
    for name, text in map(str.split, files):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert differences(tmp_path / "a", tmp_path / "b") == ["alone", "other"]


def test_the_lowest_versions_are_the_bounds_that_a_wheel_names(tmp_path: Path) -> None:
    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        needs = (
            "Requires-Dist: pymongo>=4.19; extra == 'broker'",
            "Requires-Dist: tzdata; extra == 'broker'",
        )
        packed.writestr("x.dist-info/METADATA", "Name: x\n" + "\n".join(needs) + "\n")
    assert lowest_versions([wheel]) == ["pymongo==4.19"]


def test_a_package_has_a_configuration_that_is_valid_and_names_no_hosts_key(tmp_path: Path) -> None:
    text = configuration((ROOT / "deploy/sluicemq.toml").read_text())
    write_key_file(tmp_path / "secret.key", KeyPair(bytes(range(32)), bytes(range(100, 132))))
    (tmp_path / "mongodb-uri").write_text("mongodb://a/?replicaSet=rs0")
    (tmp_path / "mongodb-uri").chmod(0o600)
    (tmp_path / "sluicemq.toml").write_text(text.replace("/etc/sluicemq/", f"{tmp_path}/"))
    config = load(tmp_path / "sluicemq.toml", {}, {})
    assert config.broker.mongodb_uri
    assert not problems_of_exposure(config)
    # and the administrator is a comment, which is valid once it has a key
    assert not config.principals
    opened = text.partition("\n#[security.principals.admin]\n")[2]
    shown = tomllib.loads("[admin]\n" + "".join(line[1:] + "\n" for line in opened.splitlines()))
    assert shown["admin"] == {"keys": ["ITS PUBLIC KEY"], "permissions": "all"}


def test_a_package_does_not_say_where_it_was_built(tmp_path: Path) -> None:
    (tmp_path / "x.dist-info").mkdir()
    for name in ("RECORD", "direct_url.json"):
        (tmp_path / "x.dist-info" / name).write_text(
            "../../../bin/x,sha256=of-a-path,213\nx/bin/y,sha256=a,1\nx.dist-info/direct_url.json,sha256=b,2\n"
        )
    leave_out_where_it_was_built(tmp_path)
    [record] = (tmp_path / "x.dist-info").iterdir()
    assert record.read_text() == "../../../bin/x,,\nx/bin/y,sha256=a,1\n"


def test_debian_sorts_versions_as_python_does() -> None:
    assert debian_version("1.0.0") == "1.0.0"
    assert [debian_version(name) for name in ("1.0rc1", "1.0a2", "1.0.dev3")] == [
        "1.0~rc1",
        "1.0~a2",
        "1.0~dev3",
    ]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_maintainers_script_is_one_of_a_plain_shell(name: str) -> None:
    shell = shutil.which("dash") or "sh"
    assert (DEBIAN / name).read_text().startswith("#!/bin/sh\n")
    assert subprocess.run([shell, "-n", DEBIAN / name], check=False).returncode == 0


def test_what_debian_is_told_of_a_package_has_its_conffile_and_nothing_else_open() -> None:
    assert (DEBIAN / "conffiles").read_text() == "/etc/sluicemq/sluicemq.toml\n"
    control = (DEBIAN / "control").read_text()
    named = {"VERSION", "ARCHITECTURE", "SIZE", "PYTHON", "NEXT_PYTHON"}
    assert set(re.findall(r"@(\w+)@", control)) == named
    assert {file.name for file in DEBIAN.iterdir()} == {*SCRIPTS, "control", "conffiles"}
