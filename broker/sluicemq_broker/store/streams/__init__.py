"""Streams in MongoDB: segments, subscriptions, and routes into queues."""
