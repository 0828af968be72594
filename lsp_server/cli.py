"""Starts the language server on stdio, or on a port for debugging.

The only file of the language server that reads arguments or sets up logging. Stdout belongs to
the protocol.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from specengine.garbage import nothing_to_collect
from specengine.launch import program_version
from specengine.trouble import Formatter, take_over_threads


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until the editor goes."""
    options = _parser().parse_args(arguments)
    to_stderr = logging.StreamHandler()
    to_stderr.setFormatter(Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=options.log_level.upper(), handlers=[to_stderr])
    take_over_threads()
    # Below WARNING pygls logs whole messages, at WARNING each cancel of a request that is answered
    # already, and at ERROR what it could not read: with them goes source text.
    logging.getLogger("pygls").setLevel(logging.CRITICAL)
    for name in ("asyncio", "httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.WARNING)
    with nothing_to_collect():
        from lsp_server.server import make_server

        server = make_server()
    if options.tcp is None:
        server.start_io()
    else:
        host, port = options.tcp
        server.start_tcp(host, port)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="specengine-lsp",
        description="Language server for inline code completion; an editor starts it on stdio.",
    )
    parser.add_argument("--version", action="version", version=program_version())
    parser.add_argument(
        "--tcp", metavar="HOST:PORT", type=_host_and_port, help="listen there, for debugging"
    )
    parser.add_argument("--stdio", action="store_true", help="the default; some editors pass it")
    parser.add_argument(
        "--log-level", default="warning", choices=("debug", "info", "warning", "error")
    )
    return parser


def _host_and_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host, int(port)


if __name__ == "__main__":
    sys.exit(main())
