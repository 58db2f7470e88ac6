"""Reads and changes for administration: lists and counts of jobs, operations on many jobs, history."""
