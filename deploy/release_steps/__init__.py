"""Steps of ``deploy/release``: what is built, tried, written beside it, and packed for Debian."""
