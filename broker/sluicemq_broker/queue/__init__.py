"""One queue whole, and all of them: what is pushed, who works, what is settled, who asks."""
