"""The broker put together: its parts, and the order in which they start and stop."""
