"""Plain ZeroMQ programs as any textbook has them; each knows only an endpoint. See plain.c."""

import sys
import time

import zmq

KINDS = {"ask": "REQ", "answer": "REP", "push": "PUSH", "pull": "PULL", "publish": "PUB", "subscribe": "SUB"}

name, endpoint, *texts = sys.argv[1:]
context = zmq.Context()
socket = context.socket(zmq.SocketType[KINDS[name]])
if name == "subscribe":
    socket.subscribe(texts[0])
socket.connect(endpoint)
if name == "ask":
    for text in texts:
        socket.send_string(text)
        print(socket.recv_string())
elif name == "answer":
    while True:
        socket.send_string("Python:" + socket.recv_string())
elif name == "push":
    for text in texts:
        socket.send_string(text)
    socket.close()
    context.term()  # waits until all is sent; just ending may lose it
elif name == "pull":
    while True:
        print(socket.recv_string(), flush=True)
elif name == "publish":
    while True:
        socket.send_string(texts[0])
        time.sleep(0.02)
else:
    print(socket.recv_string())
