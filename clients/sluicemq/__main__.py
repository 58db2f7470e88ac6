"""``python -m sluicemq``: the command ``sluicemq``."""

from sluicemq.cli import main

if __name__ == "__main__":
    main()
