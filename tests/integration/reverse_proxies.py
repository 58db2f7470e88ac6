"""A reverse proxy of a test's own: a real nginx or Caddy on a free port, with the recipe of the documents."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.http_reader import Web
from support.waiting import TIMEOUT, wait_until

#: A name that leads to this machine in every browser.
HOST = "mq.localhost"

_NGINX = """
daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log; events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
    uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
    server {{
        listen 127.0.0.1:{port};
        {recipe}
    }}
}}
"""
_CADDY = """
{{
    admin off
}}
http://{host}:{port} {{
    bind 127.0.0.1
    {recipe}
}}
"""


@contextmanager
def nginx(recipe: str, folder: Path, port: int) -> Iterator[Web]:
    """Nginx with this in its ``server``; where it is reached."""
    file = folder / "nginx.conf"
    file.write_text(_NGINX.format(folder=folder, port=port, recipe=recipe))
    with _running(["/usr/sbin/nginx", "-c", str(file), "-e", str(folder / "error.log")], folder, port) as web:
        yield web


@contextmanager
def caddy(recipe: str, folder: Path, port: int) -> Iterator[Web]:
    """Caddy with this in the block of its site; where it is reached."""
    file = folder / "Caddyfile"
    file.write_text(_CADDY.format(host=HOST, port=port, recipe=recipe))
    with _running(["caddy", "run", "--adapter", "caddyfile", "--config", str(file)], folder, port) as web:
        yield web


@contextmanager
def _running(command: list[str], folder: Path, port: int) -> Iterator[Web]:
    environment = {"HOME": str(folder), "PATH": "/usr/bin:/usr/sbin"}
    with (folder / "log").open("wb") as log, subprocess.Popen(
        command, stdout=log, stderr=log, env=environment, cwd=folder
    ) as process:  # fmt: skip
        web = Web(f"127.0.0.1:{port}")
        try:
            wait_until(lambda: _answers(web), what=f"the start of {command[0]}")
            yield web
        finally:
            process.terminate()
            process.wait(TIMEOUT)


def _answers(web: Web) -> bool:
    try:
        web.dial().close()
    except OSError:
        return False
    return True
