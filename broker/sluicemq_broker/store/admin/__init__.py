"""Reads and changes for administration: lists and counts of jobs, orders for many jobs, history."""
