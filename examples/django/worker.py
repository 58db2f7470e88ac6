"""The app for ``sluicemq work worker:app --processes 4``: Django is set up before tasks are loaded."""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
django.setup()

from shop.tasks import app  # noqa: E402, F401 - the models are there now
