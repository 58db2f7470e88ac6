"""A PULL worker that takes so many jobs, and then none: ``taker.py ADDRESS RCVHWM COUNT``.

It says ``got JOB`` for each and then ``full``.
"""

import sys
import threading

import zmq

address, hwm, count = sys.argv[1:]
with zmq.Context() as context, context.socket(zmq.PULL) as jobs:
    jobs.rcvhwm = int(hwm)
    jobs.connect(address)
    for _ in range(int(count)):
        print("got", jobs.recv().decode(), flush=True)
    print("full", flush=True)
    threading.Event().wait()
