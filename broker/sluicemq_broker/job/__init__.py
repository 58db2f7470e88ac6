"""A job and the page on which its life is drawn."""
