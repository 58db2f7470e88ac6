"""Queues in MongoDB: the verbs of one queue, the documents of its jobs, and transactions between queues."""
