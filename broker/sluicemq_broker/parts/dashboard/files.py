"""The dashboard's files: read from the package once; a hash of each is its version."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import TYPE_CHECKING, Final, NamedTuple

import falcon

if TYPE_CHECKING:
    from sluicemq_broker.http import Site

_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
#: Only scripts, styles and images of this door; no script is made of text.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)


class DashboardFile(NamedTuple):
    """One file of the dashboard."""

    content: bytes
    kind: str
    tag: str

    def serve(self, request: falcon.Request, response: falcon.Response) -> None:
        """Answer with the file, or with 304 if the browser has it."""
        response.set_header("ETag", f'"{self.tag}"')
        response.set_header("Cache-Control", "no-cache")
        response.set_header("Content-Security-Policy", POLICY)
        if self.tag in (request.get_header("If-None-Match") or ""):
            response.status = falcon.HTTP_304
            return
        response.content_type = self.kind
        response.data = self.content


def add_paths(site: Site) -> None:
    """Add a path for each file."""
    for name, file in _files().items():
        path = "/" if name == "index.html" else f"/dashboard/{name}"
        site.serve(path, "dashboard.get", "The dashboard", None, file.serve, media=file.kind)


def _files() -> dict[str, DashboardFile]:
    folder = resources.files(__package__).joinpath("static")
    found: dict[str, DashboardFile] = {}
    for path in folder.iterdir():
        kind = _TYPES.get(path.name.rpartition(".")[2])
        if kind:
            content = path.read_bytes()
            found[path.name] = DashboardFile(content, kind, hashlib.sha256(content).hexdigest()[:16])
    return found
