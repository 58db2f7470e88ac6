"""The MongoDB that a broker brings along."""
