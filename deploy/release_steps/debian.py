"""A package for the Debian or Ubuntu where it is built: what ``deploy/install`` makes, for ``dpkg``.

Its environment is of this system's Python and architecture, so the package depends on the same Python. The
maintainer's scripts in ``deploy/debian`` make what differs from host to host: user, keys, the state folder.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from pathlib import Path

from release_steps.programs import fail, run, say, temporary_folder

#: Debian's own Python; an environment of another one would not run elsewhere.
PYTHON = "/usr/bin/python3"
SCRIPTS = ("preinst", "postinst", "prerm", "postrm")
_ADMIN = "[security.principals.admin]"
_HINT = """\
# To let it in, take the "#" away and write its public key: sluicemq key show /etc/sluicemq/client.key
"""


def build_package(checkout: Path, wheels: Path) -> None:
    """Pack the wheel of the broker that lies in a folder, with all that it needs, into that folder."""
    if not shutil.which("dpkg-deb") or not Path(PYTHON).exists():
        fail("a Debian package is built on Debian or Ubuntu, with their Python: apt-get install python3-venv")
    os.umask(0o022)
    found = sorted(wheels.glob("sluicemq-[0-9]*.whl"))
    if len(found) != 1:
        fail(f"{wheels} must have one sluicemq-*.whl, and has {len(found)}: run ./deploy/release before")
    number = found[0].name.split("-")[1]
    with temporary_folder() as folder:
        root = folder / "root"
        say(f"installing {found[0].name} and what it needs, for {PYTHON}")
        # The address is left out again: see arrange.
        install = ("--root", str(root), "--mongodb-uri", "mongodb://localhost/", "--wheels", str(wheels))
        run(checkout / "deploy/install", *install, env=os.environ | {"PYTHON": PYTHON})
        arrange(checkout, root, number)
        version = f"{debian_version(number)}+{distribution()}"
        name = f"sluicemq_{version}_{write_control(checkout, root, version)}.deb"
        run("dpkg-deb", "-Zzstd", "--root-owner-group", "--build", str(root), str(wheels / name))
    say(f"{name} has {(wheels / name).stat().st_size / 1e6:.0f} MB")


def arrange(checkout: Path, root: Path, number: str) -> None:
    """Put what was installed where a package has it, and leave out what is of one host."""
    etc = root / "etc/sluicemq"
    for name in ("secret.key", "client.key", "mongodb-uri"):
        (etc / name).unlink()
    (etc / "sluicemq.toml").write_text(configuration((checkout / "deploy/sluicemq.toml").read_text()))
    (root / "usr/lib/systemd").mkdir(parents=True)
    (root / "etc/systemd/system").rename(root / "usr/lib/systemd/system")
    (root / "usr/local/bin").rename(root / "usr/bin")
    for left in ("etc/systemd", "usr/local", "var"):
        shutil.rmtree(root / left)
    documents = root / "usr/share/doc/sluicemq"
    documents.mkdir(parents=True)
    shutil.copyfile(checkout / "LICENSE", documents / "copyright")
    [site_packages] = (root / "opt/sluicemq/versions" / number / "lib").glob("*/site-packages")
    leave_out_where_it_was_built(site_packages)
    compile_modules(root, site_packages)


def leave_out_where_it_was_built(site_packages: Path) -> None:
    """Remove what pip notes of the folders of this machine: in files, and by the sums of programs."""
    for record in site_packages.glob("*.dist-info/RECORD"):
        record.with_name("direct_url.json").unlink(missing_ok=True)
        lines = [line for line in record.read_text().splitlines() if "/direct_url.json," not in line]
        plain = [re.sub(r"^(\.\./[^,]*/bin/[^,]*),.*", r"\1,,", line) for line in lines]
        record.write_text("".join(f"{line}\n" for line in plain))


def compile_modules(root: Path, folder: Path) -> None:
    """Compile all modules for where they will lie; the service may not write there."""
    ways = ("-q", "-q", "--invalidation-mode", "unchecked-hash", "-s", str(root), "-p", "/")
    run(PYTHON, "-m", "compileall", *ways, str(folder))


def configuration(text: str) -> str:
    """Return the configuration of a package: the same for each host, so without an administrator's key."""
    head, _, admin = text.replace("#mongodb_uri_file", "mongodb_uri_file").partition(_ADMIN)
    shown = "".join(f"#{line}\n" for line in (_ADMIN + admin).splitlines())
    return head + _HINT + shown.replace("@ADMIN_KEY@", "ITS PUBLIC KEY")


def write_control(checkout: Path, root: Path, version: str) -> str:
    """Write what ``dpkg`` reads of a package; returns its architecture."""
    architecture = run("dpkg", "--print-architecture").strip()
    minor = int(run(PYTHON, "-c", "import sys; print(sys.version_info.minor)"))
    size = sum(file.lstat().st_size for file in root.rglob("*") if file.is_file()) // 1024
    text = (checkout / "deploy/debian/control").read_text()
    values = {
        "VERSION": version, "ARCHITECTURE": architecture, "SIZE": str(size),
        "PYTHON": f"3.{minor}", "NEXT_PYTHON": f"3.{minor + 1}~",
    }  # fmt: skip
    (root / "DEBIAN").mkdir()
    (root / "DEBIAN/control").write_text(re.sub(r"@(\w+)@", lambda found: values[found[1]], text))
    for name in (*SCRIPTS, "conffiles"):
        shutil.copyfile(checkout / "deploy/debian" / name, root / "DEBIAN" / name)
        (root / "DEBIAN" / name).chmod(0o755 if name in SCRIPTS else 0o644)
    return architecture


def debian_version(number: str) -> str:
    """Return a version as Debian sorts it: `1.0rc1` is before `1.0`, so it becomes `1.0~rc1`."""
    return re.sub(r"\.?(a|b|rc|dev)(\d+)", r"~\1\2", number)


def distribution() -> str:
    """Return the name of this distribution, such as `debian12`; a newer one sorts later."""
    release = platform.freedesktop_os_release()
    return release["ID"] + release.get("VERSION_ID", release.get("VERSION_CODENAME", ""))
