"""State that the brokers of one database share: leases, limits, pauses, and their events."""
