"""``python -m sluicemq.cli``: the command ``sluicemq``."""

from sluicemq.cli import main

if __name__ == "__main__":
    main()
