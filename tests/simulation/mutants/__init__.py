"""Mistakes that a good engineer could make, each as a change of one text, which the simulation must find."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """A mistake.

    Attributes:
        name: What is wrong.
        path: The file, below the package.
        old: The text, which is in the file once.
        new: What stands there instead.
    """

    name: str
    path: str
    old: str
    new: str


_LUA = "protocol/lua"

BY_HAND = (
    Mutant(
        "the deadline of a grant counts from the reply",
        "engine/leases.py",
        "if not grant_all(leases, sent_at, timeout_s, limits):",
        "if not grant_all(leases, now, timeout_s, limits):",
    ),
    Mutant(
        "the deadline of a renewal counts from the reply",
        "engine/renewal/renewer.py",
        "result = confirm_all(leases, batch.sent_at, now, batch.params.timeout_s)",
        "result = confirm_all(leases, now, now, batch.params.timeout_s)",
    ),
    Mutant(
        "the deadline of an extension counts from the reply",
        "engine/requests/extend.py",
        "deadline = local_deadline(self.sent_at, outcome / 1000)",
        "deadline = local_deadline(self.timer.clock.now(), outcome / 1000)",
    ),
    Mutant("clocks are trusted to run at the same rate", "options.py", "DRIFT = 0.99", "DRIFT = 1.0"),
    Mutant(
        "a renewal does not compare the token",
        f"{_LUA}/renew.lua",
        "local ours = value == argv[i + 1]",
        "local ours = value and type(value) ~= 'table'",
    ),
    Mutant(
        "a renewal may shorten",
        f"{_LUA}/renew.lua",
        "done = ours and pcall('pexpire', name, ttl, 'GT')",
        "done = ours and pcall('pexpire', name, ttl)",
    ),
    Mutant(
        "a grant is accepted too late to be lost in time",
        "engine/leases.py",
        "if maybe_late and now >= latest_grant(sent_at, timeout_s, options.max_hold_s, timer.scale.tick_s):",
        "if maybe_late and now >= sent_at + timeout_s:",
    ),
    Mutant(
        "a fence is used twice",
        f"{_LUA}/include/fence.lua",
        "return math.max(last + 1, tonumber(time[1]) * 1000000 + tonumber(time[2]))",
        "return last > 0 and last or tonumber(time[1]) * 1000000 + tonumber(time[2])",
    ),
    Mutant(
        "permits and readers are counted by a clock of whole seconds",
        f"{_LUA}/include/holders.lua",
        "local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)",
        "local now = tonumber(time[1]) * 1000",
    ),
    Mutant(
        "one permit too many",
        f"{_LUA}/acquire_permit.lua",
        "if held >= permits or",
        "if held > permits or",
    ),
    Mutant(
        "a release does not compare the token",
        f"{_LUA}/release.lua",
        "if value == ARGV[1] then",
        "if type(value) == 'string' then",
    ),
    Mutant(
        "a release of many does not compare the token",
        f"{_LUA}/release_many.lua",
        "if value == argv[i + 1] then",
        "if type(value) == 'string' then",
    ),
    Mutant(
        "a release of a fair lock does not compare the token",
        f"{_LUA}/release_fair.lua",
        "if value == token then redis.call('del', name) end",
        "if value then redis.call('del', name) end",
    ),
    Mutant(
        "a reentrant lock is released without a look at its holder",
        f"{_LUA}/release_reentrant.lua",
        "if mine == 1 then",
        "if type(mine) == 'number' then",
    ),
    Mutant(
        "a lost lease comes back with a late confirmation",
        "lease.py",
        "if lease.state is not renewing or lease.loss is not None or lease.limits is not None:",
        "if lease.limits is not None:",
    ),
    Mutant(
        "a confirmation is accepted behind the deadline",
        "lease.py",
        "            if not now < before < deadline:",
        "            if not before < deadline:",
    ),
    Mutant(
        "a release wakes nobody",
        f"{_LUA}/release.lua",
        "local woken = redis.pcall('publish', ARGV[2], '0')",
        "local woken = 0",
    ),
    Mutant(
        "a fair release wakes nobody",
        f"{_LUA}/release_fair.lua",
        "redis.pcall('publish', channel, first) end",
        "redis.pcall('get', channel) end",
    ),
    Mutant(
        "a loss is told a tenth of a second late",
        "engine/renewal/retry.py",
        "self.table.mark_lost(self.overdue.pop_until(self.timer.scale.seconds(self.timer.wheel.now + 2)))",
        "self.table.mark_lost(self.overdue.pop_until(self.timer.scale.seconds(self.timer.wheel.now - 10)))",
    ),
    Mutant(
        "a loss is told twice",
        "engine/leases.py",
        "            self.report_lost(lost)\n            for lease in lost:",
        "            self.report_lost(lost)\n            self.report_lost(lost)\n            for lease in lost:",
    ),
    Mutant(
        "a loss is not told",
        "engine/leases.py",
        "            self.report_lost(lost)\n            for lease in lost:",
        "            for lease in lost:",
    ),
    Mutant(
        "a release returns before it is sent",
        "engine/requests/release.py",
        "        self.quiet = quiet\n        self.start()",
        "        self.quiet = quiet\n        self.start()\n        self._future.set_result(None)",
    ),
    Mutant(
        "a grant that comes too late, or to nobody, is kept",
        "engine/leases.py",
        "        if clean_up:\n            self.clean_up(leases, node)",
        "        pass",
    ),
    Mutant(
        "one renewal too many",
        "lease.py",
        "used_up = limits.max_renewals is not None and self.renewals >= limits.max_renewals",
        "used_up = limits.max_renewals is not None and self.renewals > limits.max_renewals",
    ),
    Mutant(
        "a hold limit does not end the lease",
        "lease.py",
        "        return deadline if self.limits is None else min(deadline, self.limits.hold_until)",
        "        return deadline",
    ),
    Mutant(
        "a reader does not look for a writer",
        f"{_LUA}/acquire_read.lua",
        "local until_ms = math.max(held, waits)",
        "local until_ms = waits",
    ),
    Mutant(
        "a writer does not look for readers",
        f"{_LUA}/acquire_write.lua",
        "if last[2] then until_ms = math.max(until_ms, tonumber(last[2])) end",
        "",
    ),
    Mutant(
        "a fair lock is granted to whoever asks",
        f"{_LUA}/acquire_fair.lua",
        "if value == token or (not value and (not first or first == me)) then",
        "if value == token or not value then",
    ),
    Mutant(
        "a new key has no expiry",
        f"{_LUA}/include/expiry.lua",
        "if there == 0 then redis.call('pexpire', name, ttl) end",
        "",
    ),
    Mutant(
        "all or none, but those that are held are passed over",
        f"{_LUA}/acquire_all.lua",
        "if value and value ~= ARGV[i + 1] then return {i / 2, unpack(held(ARGV[i], value))} end",
        "",
    ),
    Mutant(
        "a bulk acquire takes a held lock for its own",
        f"{_LUA}/acquire_many.lua",
        "if pcall('get', argv[i]) == argv[i + 1] then",
        "if pcall('get', argv[i]) then",
    ),
    Mutant(
        "an exported lease is renewed by its adopter without a new token",
        f"{_LUA}/adopt.lua",
        "redis.call('set', KEYS[1], ARGV[2], 'XX', 'PX', string.format('%.0f', ttl))",
        "redis.call('set', KEYS[1], ARGV[1], 'XX', 'PX', string.format('%.0f', ttl))",
    ),
    Mutant(
        "a renewal of a sorted set moves the key only",
        f"{_LUA}/renew_holders.lua",
        "done = pcall('zadd', name, score > 0 and expiry or -expiry, argv[i + 1])",
        "done = 1",
    ),
    Mutant(
        "a loss during a bulk acquire is told to a caller that gets nothing",
        "engine/loss_events.py",
        "        return not self._passes",
        "        return False",
    ),
    Mutant(
        "a forked child believes in its parent's leases",
        "engine/engine.py",
        "            renewer.start_empty()",
        "            renewer.node",
    ),
    Mutant(
        "a leadership is held until it is given up",
        "locks/leader.py",
        "        return not self._given_up and self._lock.is_held",
        "        return not self._given_up",
    ),
    Mutant(
        "one lock more than the limit of a context",
        "engine/state.py",
        "len(self.held) + self.acquiring + wanted > most:",
        "len(self.held) + self.acquiring + wanted > most + 1:",
    ),
    Mutant(
        "a caller that follows another one's try begins anew with its time limit",
        "engine/waiting/waiter.py",
        "end_of_try(self.until, self.table.timer.now if self._attempts else self.began_at, self.node)",
        "end_of_try(max(self.until, self.table.timer.now), self.table.timer.now, self.node)",
    ),
    Mutant(
        "the direct path takes a refusal for a grant",
        "engine/direct/hold.py",
        '        if reply == b"OK" and took_s < group.timeout_s / 2:',
        '        if reply in (b"OK", None) and took_s < group.timeout_s / 2:',
    ),
)
