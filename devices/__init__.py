"""ZeroMQ under gevent: doors, gates and lanes, and the three devices that join two ends."""
