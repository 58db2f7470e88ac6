"""Copies of whole databases: read as they are at one moment, and written into empty ones."""
