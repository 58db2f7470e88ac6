"""Settings of the shop; those of SluiceMQ are the last ones."""

import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent
DEBUG = "SECRET_KEY" not in os.environ  # to be tried
SECRET_KEY = os.environ.get("SECRET_KEY", "for trying only")
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "urls"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DATABASE", BASE_DIR / "shop.sqlite3"),
        "OPTIONS": {"timeout": 20},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"
USE_TZ = True

SLUICEMQ = {"endpoint": os.environ.get("SLUICEMQ_ENDPOINT", "tcp://127.0.0.1:5550")}
SLUICEMQ_DASHBOARD = os.environ.get("SLUICEMQ_DASHBOARD", "http://127.0.0.1:5580")
