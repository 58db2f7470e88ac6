"""The protocol that library, broker and devices share: messages, errors, options of jobs, rules of values.

Nothing here knows sockets or threads. ``wire`` has the messages of SMQ/1, ``packed`` those of streams,
``errors`` one class for each code, ``options`` the options of a job.
"""
