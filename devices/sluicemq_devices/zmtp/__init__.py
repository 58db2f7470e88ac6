"""ZeroMQ's protocol, ZMTP 3.0 and 3.1: greeting, frames, messages."""
