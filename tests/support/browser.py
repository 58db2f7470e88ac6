"""A headless Chromium for tests and pictures: the system's, which ``./deploy/test`` installs where it can."""

import os
import shutil

from playwright.sync_api import Browser, Playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def path_of_chromium() -> str | None:
    """Where it is; ``SLUICEMQ_TEST_CHROMIUM`` names another one."""
    found = (shutil.which(name) for name in _NAMES)
    return os.environ.get("SLUICEMQ_TEST_CHROMIUM") or next(filter(None, found), None)


def chromium(playwright: Playwright) -> Browser:
    """One that runs; AssertionError if there is none."""
    path = path_of_chromium()
    assert path, "no Chromium: ./deploy/test installs it, or apt-get install chromium"
    # Its sandbox needs privileges that a container, or root, has not.
    return playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
