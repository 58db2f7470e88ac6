"""Migrations, as manage.py makemigrations makes them."""
