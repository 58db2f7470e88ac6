"""``python -m sluicemq_broker``: what ``sluicemq serve`` runs."""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # the current folder: a zmq.py or a gevent/ there is not what is meant

from gevent import monkey

monkey.patch_all()

from sluicemq_broker.process import main  # noqa: E402 - everything after the patch

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
