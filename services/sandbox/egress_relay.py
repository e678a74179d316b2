"""Runs inside a sandbox: carries connections to 127.0.0.1 over to the egress proxy's Unix socket, then becomes the command.

Standard library only and no import of ours: the file is shown in the sandbox alone. Usage: relay.py SOCKET PORT COMMAND ARGUMENT...
"""

import asyncio
import os
import sys

CHUNK = 65536


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.close()


async def _serve(path: str, port: int, ready: int) -> None:
    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_unix_connection(path)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, up_writer), _copy(up_reader, writer))
        up_writer.close()
        writer.close()

    server = await asyncio.start_server(connect, "127.0.0.1", port)
    os.write(ready, b"1")
    os.close(ready)
    async with server:
        await server.serve_forever()


def main() -> None:
    """Start the relay in a child process, wait until it listens, then replace this process by the command."""
    path, port, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    wait, ready = os.pipe()
    if os.fork() == 0:
        os.close(wait)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        asyncio.run(_serve(path, port, ready))
        os._exit(0)
    os.close(ready)
    if os.read(wait, 1) != b"1":
        sys.exit("the way to the package registries could not be opened inside the sandbox")
    os.close(wait)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
