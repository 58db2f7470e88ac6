"""ZeroMQ's protocol on gevent: doors and lanes, and the three devices that join two ends."""
