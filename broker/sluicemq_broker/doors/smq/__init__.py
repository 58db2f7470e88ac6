"""The library's protocol, SMQ/1, at its door."""
