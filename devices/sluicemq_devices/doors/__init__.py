"""Doors, lanes and connections."""
