"""``python -m broker``: what ``sluicemq serve`` runs."""

from gevent import monkey

monkey.patch_all()

import sys  # noqa: E402 - everything after the patch

from broker.serve import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
