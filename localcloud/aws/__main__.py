"""`python -m localcloud.aws serve|start|stop|status|inventory`."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import urllib.request

from localcloud.aws import service
from localcloud.aws.journal import JournalError
from localcloud.kubernetes.errors import ClusterError
from localcloud.paths import InstanceError, instance

COMMANDS = {
    "serve": "serve in the foreground",
    "start": "start the server in the background and wait until it answers",
    "stop": "end the server; its state stays",
    "status": "whether it runs",
    "inventory": "what exists in it, as JSON",
}


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


def run(command: str) -> None:
    """Carry out one command."""
    if command == "serve":
        from localcloud.aws.server import PortInUse, serve

        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        try:
            serve()
        except PortInUse as error:
            raise ClusterError(str(error)) from error
    elif command == "start":
        service.start(_say)
    elif command == "stop":
        service.stop(_say)
    elif command == "status":
        _say(json.dumps(service.health() or {"status": "not running"}))
    else:
        with urllib.request.urlopen(f"{instance().aws_url}/slipway/inventory", timeout=30) as response:  # noqa: S310
            _say(response.read().decode())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m localcloud.aws", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        if name == "serve":
            command.add_argument("--sources", help="digest of the sources, by which an outdated server is recognised")
    try:
        run(parser.parse_args().command)
    except (ClusterError, InstanceError, JournalError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
