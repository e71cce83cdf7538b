"""`pulumi-resource-aws [engine address]`: started by the engine, serves on a port of its own."""

from __future__ import annotations

import logging
import sys

from localcloud.aws.provider.server import serve

if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    serve(arguments[0] if arguments else "")
