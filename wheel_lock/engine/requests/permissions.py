"""Rights: a lock that the user could not renew or release is refused before anything is sent.

Each new connection finds the commands of the scripts that the user may not call; usually there are none. A request that
needs one of them is preceded by another check, because an administrator may have granted the right meanwhile.
"""

from __future__ import annotations

from wheel_lock.engine.requests.base import CallerRequest, Request
from wheel_lock.lease import Lease
from wheel_lock.lock_types.base import LockType
from wheel_lock.net.capabilities import read_missing
from wheel_lock.protocol import scripts
from wheel_lock.protocol.resp import Reply
from wheel_lock.protocol.scripts import Command
from wheel_lock.protocol.server_errors import ServerError

TO_CALL_SCRIPTS = frozenset({"eval", "evalsha"})


def needs_of(lock_type: LockType, lease: Lease, *, renewed: bool) -> frozenset[str]:
    """Return the commands that the release of a lease calls, and if it is ``renewed`` its renewals.

    A missing right for its acquire shows in the reply to that.
    """
    release, release_many = lock_type.release(lease).script, lock_type.release_many([lease]).script
    used = (release, release_many, lock_type.renew if renewed else None)
    return TO_CALL_SCRIPTS.union(*[script.commands for script in used if script is not None])


class RightsCheck(Request):
    """The check which commands the user may not call, ahead of a request that needs some of them."""

    __slots__ = ("_request",)

    def __init__(self, request: CallerRequest) -> None:
        super().__init__(request.table, request.node)
        self._request = request

    def call(self) -> Command:
        return scripts.rights_call(keyed=self.node.single_key_mode)

    @property
    def awaited(self) -> bool:
        return not self._request.finished

    def _go_on(self, missing: frozenset[str]) -> None:
        self.finished = True
        self.node.missing_rights = missing
        if missing & self._request.needs:
            self._request.forbidden(missing & self._request.needs)
        elif not self._request.finished:
            self.node.send(self._request)

    def value_reply(self, reply: Reply) -> None:
        self._go_on(read_missing(reply))

    def error_reply(self, error: ServerError) -> None:
        known = self.node.missing_rights
        self._go_on(error.forbidden & TO_CALL_SCRIPTS)  # the request itself will meet any other error
        self.node.missing_rights = known  # the error says nothing about other commands

    def crashed(self, error: Exception) -> None:
        super().crashed(error)
        self._request.crashed(error)

    def on_connection_lost(self, error: Exception) -> None:
        self.finished = True
        self._request.on_connection_lost(error)

    def on_unavailable(self, error: Exception) -> None:
        self.finished = True
        self._request.on_unavailable(error)
