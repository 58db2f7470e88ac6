"""The process: its command, its order of starting and stopping, where it listens."""
