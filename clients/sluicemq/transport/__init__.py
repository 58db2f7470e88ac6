"""Between the library's faces and a broker: one I/O thread per connection, and what each face does in it."""
