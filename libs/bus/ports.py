"""Ports of the loopback interface."""

import random
import socket

HTTP = 8787
NATS = 4222
NATS_MONITOR = 8222


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen on the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free() -> int:
    """A port that nobody listens on, below those that the kernel lends to outgoing connections."""
    while True:
        port = random.randint(20_000, 32_000)
        if is_free(port):
            return port


def wanted_or_free(port: int) -> int:
    """The port itself, or another one when it is taken."""
    return port if is_free(port) else free()
