"""Hashes of passwords that cost nothing to check: a broker on a busy machine takes seconds for a real one."""

from argon2 import PasswordHasher

_CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


def cheap_hash(password: str) -> str:
    """The argon2 hash of a password, for ``[security.principals]``."""
    return _CHEAP.hash(password)
