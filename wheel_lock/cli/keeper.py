"""The command ``keeper``: it opens the socket, and then becomes the program of the keeper of a host, or of a pod."""

from __future__ import annotations

import os
import socket
import stat
import sys
from typing import Annotated

import typer

from wheel_lock.cli.arguments import Refusal, checked
from wheel_lock.keeper import NEEDS, PROGRAM, is_possible
from wheel_lock.options import keeper_place


def keeper(
    path: Annotated[str, typer.Option("--socket", metavar="PATH", help="The path of the socket, which is made anew.")],
) -> None:
    """Release the locks of processes of this user that are killed or crash, as soon as they have ended.

    Processes use it by LockContext(..., release_on_crash=PATH), or by the environment variable WHEEL_LOCK_KEEPER=PATH. They
    pass it all that it needs, so it has no other settings, and may be restarted at any time. Runs until it gets a signal;
    a line on stderr names each process whose locks it has released. Linux only.

    Ends with 1 if another keeper serves the socket, or it cannot be made; 2 if the command line is wrong.
    """
    with checked():
        address = str(keeper_place("--socket", path))
    if not is_possible():
        raise Refusal(f"the keeper {NEEDS}")
    try:
        listener = _listener(address)
    except OSError as error:
        raise Refusal(f"cannot make the socket {address!r}: {error.strerror}") from None
    os.set_inheritable(listener.fileno(), True)
    os.execv(sys.executable, [sys.executable, "-I", "-S", os.fspath(PROGRAM), str(listener.fileno())])


def _listener(address: str) -> socket.socket:
    """Return a listening socket that only this user may connect to, in the place of one that no keeper serves any more.

    Raises:
        Refusal: A keeper serves it.
        OSError: It cannot be made, or something else has this path.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        try:
            probe.connect(address)
            raise Refusal(f"a keeper serves {address!r} already")
        except ConnectionRefusedError:
            if stat.S_ISSOCK(os.lstat(address).st_mode):
                os.unlink(address)
        except OSError:
            pass  # it is not there, or bind() says what is wrong
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    before = os.umask(0o177)
    try:
        listener.bind(address)
        listener.listen(socket.SOMAXCONN)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener
