"""A broker without parts: ``python tests/integration/queue_only_broker.py --config FILE --ready-file FILE``.

When it has stopped it writes the names of all modules that were imported to ``modules.json``.
"""

import json
import os
import signal
import sys
from pathlib import Path

if __name__ == "__main__":
    from gevent import monkey

    monkey.patch_all()

    import gevent
    from gevent.event import Event

    from sluicemq_broker.config import load
    from sluicemq_broker.process.server import Server

    _config = load(Path(sys.argv[2]), {}, {})
    _uri = _config.broker.mongodb_uri
    _stop = Event()
    gevent.signal_handler(signal.SIGTERM, _stop.set)
    _server = Server(_config, _uri.text if _uri else "", alone=False)
    try:
        _server.start()
        _part = Path(sys.argv[4]).with_suffix(".part")
        _part.write_text(json.dumps({"pid": os.getpid(), **_server.describe()}))
        _part.rename(sys.argv[4])
        _stop.wait()
    finally:
        _server.stop()
        Path("modules.json").write_text(json.dumps(sorted(sys.modules)))
