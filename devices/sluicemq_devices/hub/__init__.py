"""Turns and time on gevent's hub, marks, and notices that never block."""
