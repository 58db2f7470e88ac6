"""The way to a broker: one I/O thread per connection, and the role of its owner in that thread."""
