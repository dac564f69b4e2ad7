"""Mistakes that a good engineer could make, each as a change of one text, which the simulation must find."""

from __future__ import annotations

from tests.simulation.mutants.mutant import by_hand

_LUA = "protocol/lua"

BY_HAND = tuple(
    by_hand(*each)
    for each in (
        (
            "the deadline of a grant counts from the reply",
            "engine/leases.py",
            "if not grant_all(leases, sent_at, timeout_s, limits):",
            "if not grant_all(leases, now, timeout_s, limits):",
        ),
        (
            "the deadline of a renewal counts from the reply",
            "engine/renewal/flow.py",
            "result = confirm_all(leases, batch.sent_at, now, batch.params.timeout_s)",
            "result = confirm_all(leases, now, now, batch.params.timeout_s)",
        ),
        (
            "the deadline of an extension counts from the reply",
            "engine/requests/extend.py",
            "deadline = local_deadline(self.sent_at, outcome / 1000)",
            "deadline = local_deadline(self.timer.clock.now(), outcome / 1000)",
        ),
        (
            "what is held does not end with the thread",
            "engine/engine.py",
            "(self.direct, self.leases, self.router, Swaps(self.leases), self.wait_queues)",
            "(self.direct, self.router, Swaps(self.leases), self.wait_queues)",
        ),
        (
            "what waits does not end with the engine",
            "engine/engine.py",
            "(self.direct, self.leases, self.router, Swaps(self.leases), self.wait_queues)",
            "(self.direct, self.leases, self.router, Swaps(self.leases))",
        ),
        ("clocks are trusted to run at the same rate", "options.py", "DRIFT = 0.99", "DRIFT = 1.0"),
        (
            "a renewal does not compare the token",
            f"{_LUA}/renew.lua",
            "local ours = value == argv[i + 1]",
            "local ours = value and type(value) ~= 'table'",
        ),
        (
            "a renewal may shorten",
            f"{_LUA}/renew.lua",
            "done = ours and pcall('pexpire', name, ttl, 'GT')",
            "done = ours and pcall('pexpire', name, ttl)",
        ),
        (
            "a grant is accepted too late to be lost in time",
            "engine/leases.py",
            "if maybe_late and now >= latest_grant(sent_at, timeout_s, options.max_hold_s, timer.scale.tick_s):",
            "if maybe_late and now >= sent_at + timeout_s:",
        ),
        (
            "a fence is used twice",
            f"{_LUA}/include/fence.lua",
            "return math.max(last + 1, tonumber(time[1]) * 1000000 + tonumber(time[2]))",
            "return last > 0 and last or tonumber(time[1]) * 1000000 + tonumber(time[2])",
        ),
        (
            "permits and readers are counted by a clock of whole seconds",
            f"{_LUA}/include/holders.lua",
            "local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)",
            "local now = tonumber(time[1]) * 1000",
        ),
        (
            "one permit too many",
            f"{_LUA}/acquire_permit.lua",
            "if held >= permits or",
            "if held > permits or",
        ),
        (
            "a release does not compare the token",
            f"{_LUA}/release.lua",
            "if value == ARGV[1] then",
            "if type(value) == 'string' then",
        ),
        (
            "a release of many does not compare the token",
            f"{_LUA}/release_many.lua",
            "if value == argv[i + 1] then",
            "if type(value) == 'string' then",
        ),
        (
            "a release of a fair lock does not compare the token",
            f"{_LUA}/release_fair.lua",
            "if value == token then redis.call('del', name) end",
            "if value then redis.call('del', name) end",
        ),
        (
            "a reentrant lock is released without a check of its holder",
            f"{_LUA}/release_reentrant.lua",
            "if mine == 1 then",
            "if type(mine) == 'number' then",
        ),
        (
            "a lost lease comes back with a late confirmation",
            "lease.py",
            "if lease.state is not renewing or lease.loss is not None or lease.limits is not None:",
            "if lease.limits is not None:",
        ),
        (
            "a confirmation is accepted behind the deadline",
            "lease.py",
            "            if not now < before < deadline:",
            "            if not before < deadline:",
        ),
        (
            "a release wakes no waiter",
            f"{_LUA}/release.lua",
            "local woken = redis.pcall('publish', ARGV[2], '0')",
            "local woken = 0",
        ),
        (
            "a fair release wakes no waiter",
            f"{_LUA}/release_fair.lua",
            "redis.pcall('publish', channel, first) end",
            "redis.pcall('get', channel) end",
        ),
        (
            "a loss is reported a tenth of a second late",
            "engine/renewal/retries.py",
            "self._table.mark_lost(self.overdue.pop_until(self._timer.scale.seconds(self._timer.wheel.now + 2)))",
            "self._table.mark_lost(self.overdue.pop_until(self._timer.scale.seconds(self._timer.wheel.now - 10)))",
        ),
        (
            "a loss is reported twice",
            "engine/leases.py",
            "            self.report_lost(lost)\n            for lease in lost:",
            "            self.report_lost(lost)\n            self.report_lost(lost)\n            for lease in lost:",
        ),
        (
            "a loss is not reported",
            "engine/leases.py",
            "            self.report_lost(lost)\n            for lease in lost:",
            "            for lease in lost:",
        ),
        (
            "a release returns before it is sent",
            "engine/requests/release.py",
            "            self._wakeup = QUIET\n        self.start()",
            "            self._wakeup = QUIET\n        self.start()\n        self._future.set_result(None)",
        ),
        (
            "a grant that comes too late, or without a waiting caller, is kept",
            "engine/leases.py",
            "        if clean_up:\n            self.clean_up(leases, node)",
            "        pass",
        ),
        (
            "one renewal too many",
            "lease.py",
            "used_up = limits.max_renewals is not None and self.renewals >= limits.max_renewals",
            "used_up = limits.max_renewals is not None and self.renewals > limits.max_renewals",
        ),
        (
            "a hold limit does not end the lease",
            "lease.py",
            "        return deadline if self.limits is None else min(deadline, self.limits.hold_until)",
            "        return deadline",
        ),
        (
            "a reader does not check for a writer",
            f"{_LUA}/acquire_read.lua",
            "local until_ms = math.max(held, waits)",
            "local until_ms = waits",
        ),
        (
            "a writer does not check for readers",
            f"{_LUA}/acquire_write.lua",
            "if last[2] then until_ms = math.max(until_ms, tonumber(last[2])) end",
            "",
        ),
        (
            "a fair lock is granted to whoever asks",
            f"{_LUA}/acquire_fair.lua",
            "if value == token or (not value and (not first or first == me)) then",
            "if value == token or not value then",
        ),
        (
            "a new key has no expiry",
            f"{_LUA}/include/expiry.lua",
            "if there == 0 then redis.call('pexpire', name, ttl) end",
            "",
        ),
        (
            "all or none, but those that are held are passed over",
            f"{_LUA}/acquire_all.lua",
            "if value and value ~= ARGV[i + 1] then return {i / 2, unpack(held(ARGV[i], value))} end",
            "",
        ),
        (
            "a bulk acquire takes a held lock for its own",
            f"{_LUA}/acquire_many.lua",
            "if pcall('get', argv[i]) == argv[i + 1] then",
            "if pcall('get', argv[i]) then",
        ),
        (
            "an exported lease is renewed by its adopter without a new token",
            f"{_LUA}/adopt.lua",
            "redis.call('set', KEYS[1], ARGV[2], 'XX', 'PX', string.format('%.0f', ttl))",
            "redis.call('set', KEYS[1], ARGV[1], 'XX', 'PX', string.format('%.0f', ttl))",
        ),
        (
            "a renewal of a sorted set moves the key only",
            f"{_LUA}/renew_holders.lua",
            "done = pcall('zadd', name, score > 0 and expiry or -expiry, argv[i + 1])",
            "done = 1",
        ),
        (
            "a late repetition of an acquire does not prolong what it finds",
            f"{_LUA}/acquire.lua",
            "if ttl ~= '0' then prolong(redis.call, KEYS[1], ttl) end",
            "",
        ),
        (
            "a reentrant lock of another is entered",
            f"{_LUA}/acquire_reentrant.lua",
            "if there and mine ~= 1 then",
            "if there and type(mine) == 'table' then",
        ),
        (
            "a writer does not check for another writer",
            f"{_LUA}/acquire_write.lua",
            "if what == 'w' or what == 't' then",
            "if what == 't' then",
        ),
        (
            "a downgrade leaves the writer where it was",
            f"{_LUA}/swap_holder.lua",
            "redis.call('zrem', name, old)",
            "",
        ),
        (
            "the last reader wakes no writer",
            f"{_LUA}/include/leave.lua",
            "redis.call('zrem', name, 't') end\n        redis.pcall('publish', alone, '0')",
            "redis.call('zrem', name, 't') end",
        ),
        (
            "a permit that is given back wakes no waiter",
            f"{_LUA}/include/leave.lua",
            "if score then redis.pcall('publish', shared, '0') end",
            "",
        ),
        (
            "a writer that stops waiting leaves its mark",
            f"{_LUA}/include/leave.lua",
            "local waited = redis.call('zrem', name, waiter('i', member)) == 1",
            "local waited = false",
        ),
        (
            "one that stops waiting for a fair lock stays in its queue",
            f"{_LUA}/release_fair.lua",
            "redis.pcall('zrem', queue, me)\n  redis.pcall('zrem', alive, me)",
            "",
        ),
        (
            "one that waits for a fair lock and asks again goes to the end",
            f"{_LUA}/acquire_fair.lua",
            "if not ticket then",
            "if ticket ~= 0 then",
        ),
        (
            "an exported lock can be adopted whoever holds it",
            f"{_LUA}/adopt.lua",
            "if value ~= ARGV[1] and value ~= ARGV[2] then return -1 end",
            "",
        ),
        (
            "an extension does not compare the token",
            f"{_LUA}/extend.lua",
            "if value ~= ARGV[1] then",
            "if not value then",
        ),
        (
            "all or none, but set one by one before all are checked",
            f"{_LUA}/acquire_all.lua",
            "return {i / 2, unpack(held(ARGV[i], value))} end",
            "return {i / 2, unpack(held(ARGV[i], value))} end\n  redis.call('set', ARGV[i], ARGV[i + 1], 'NX', 'PX', ttl)",
        ),
        (
            "a forced release does not check who holds the lock by now",
            f"{_LUA}/force_release.lua",
            "if not as_expected({value}) then return -1 end",
            "",
        ),
        (
            "the exceptions of a renewal are one lease off",
            f"{_LUA}/renew.lua",
            "out[n + 1] = i / 2\n",
            "out[n + 1] = i / 2 - 1\n",
        ),
        (
            "half of the masters are a majority",
            "quorum/engine.py",
            "self.quorum: int = len(clients) // 2 + 1",
            "self.quorum: int = len(clients) // 2",
        ),
        (
            "a master that has lost its data votes at once",
            "quorum/node.py",
            "return self.empty_since + longest_s",
            "return self.empty_since",
        ),
        (
            "the longest vote decides how long a majority lasts",
            "quorum/lease.py",
            "later = max(until, deadlines[self.quorum - 1])",
            "later = max(until, deadlines[0])",
        ),
        (
            "a round that has failed keeps its votes",
            "quorum/acquire.py",
            "            for vote in self._lease.votes:\n                vote.withdraw()\n            self.table.reject",
            "            self.table.reject",
        ),
        (
            "the rounds of a majority share one token",
            "quorum/acquire.py",
            "wire = lease_args(self.key, last.another_token())",
            "wire = lease_args(self.key, last.token)",
        ),
        (
            "a wake-up between two waits is lost",
            "engine/waiting/decisions.py",
            "JOINED_UNHEARD: _TRY",
            "JOINED_UNHEARD: _LOOK_LATER",
        ),
        (
            "a wake-up during an attempt is lost",
            "engine/waiting/decisions.py",
            "MESSAGE: _WOKEN, ",
            "",
        ),
        (
            "the latest waiter of a process is the first to try",
            "engine/waiting/wait_queue.py",
            "return next(iter(self._waiters), None)",
            "return next(reversed(self._waiters), None)",
        ),
        (
            "a pause behind wake-ups in vain never ends",
            "engine/waiting/decisions.py",
            "PAUSED: {RELEASED: _FOLLOW, DUE: _TRY, TIME_UP: _TRY, TIME_UP_BEHIND: _TRY}",
            "PAUSED: {RELEASED: _FOLLOW}",
        ),
        (
            "a queue that lets other processes go first never tries again",
            "engine/waiting/decisions.py",
            "YIELDING: {DUE: _TRY, TIME_UP: _TRY}",
            "YIELDING: {}",
        ),
        (
            "a quiet release without a follow-up wakes no waiter",
            "engine/waiting/wait_queue.py",
            "            announce(self._registry.table, self._key, self.channel)",
            "            pass",
        ),
        (
            "a lease is renewed on while it is released",
            "engine/leases.py",
            "            group_of(lease).renewer.untrack(lease)\n            lease.transition(event)",
            "            lease.transition(event)",
        ),
        (
            "a hold limit counts from the reply",
            "engine/leases.py",
            'hold_until = float("inf") if options.max_hold_s is None else sent_at + options.max_hold_s',
            'hold_until = float("inf") if options.max_hold_s is None else now + options.max_hold_s',
        ),
        (
            "a lease that is lost is valid until its deadline",
            "lease.py",
            "return self.loss is None and self.state <= EXTENDING and now < self.deadline and self.group.alive",
            "return now < self.deadline and self.group.alive",
        ),
        (
            "a confirmed lease is never due again",
            "engine/renewal/flow.py",
            "            self._reschedule(kept, batch)\n",
            "            pass\n",
        ),
    )
)

# Mistakes that this project has made, put back.
OLD_BUGS = tuple(
    by_hand(*each, operator="old bug")
    for each in (
        (
            "a reentrant key whose expiry is refused lives for ever",
            f"{_LUA}/acquire_reentrant.lua",
            "put(KEYS[1], ARGV[2], 'hset', ARGV[1], 1)",
            "redis.call('hset', KEYS[1], ARGV[1], 1)",
        ),
        (
            "a late renewal cuts an extension",
            f"{_LUA}/include/expiry.lua",
            "if left >= tonumber(ttl) then return 1 end",
            "",
            "if redis.pcall('pexpire', name, ttl, 'GT') == 1 then return 1 end",
            "",
        ),
        (
            "a majority that ended while the process stood still comes back",
            "quorum/lease.py",
            "continuous = self.loss is None and now < self.deadline and now < until",
            "continuous = self.loss is None and now < until",
        ),
        (
            "a round of expired votes never ends",
            "quorum/lease.py",
            "return [lease for counts_from, lease in granted if counts_from <= now < lease.deadline]",
            "return [lease for counts_from, lease in granted if counts_from <= now]",
        ),
        (
            "a standstill makes a long pause between rounds",
            "quorum/acquire.py",
            "rounds_s = min(_PAUSE_ROUNDS * (now - self._round_at), context.fallback_s)",
            "rounds_s = _PAUSE_ROUNDS * (now - self._round_at)",
        ),
        (
            "a grant that meets a refused lease is forgotten",
            "engine/requests/acquire.py",
            "self._reject(self.maybe_executed_before and len(self.leases) > 1)",
            "self._reject(False)",
        ),
        (
            "a late downgrade makes its caller a reader",
            "engine/requests/swap.py",
            "in_time = self.timer.clock.now() < self.lease.deadline",
            "in_time = True",
        ),
        (
            "a refused connection ends those with a limit, too",
            "engine/waiting/waiter.py",
            "if error is None or (hasty and waiter.until is not None):",
            "if error is None:",
        ),
        (
            "a release of several that is sent twice says that its locks were lost",
            "engine/requests/release.py",
            "elif not self.maybe_executed_before:",
            "elif isinstance(outcome, LossReason):",
        ),
        (
            "replies that are read behind a stop are handled behind the alarms",
            "engine/renewal/flow.py",
            "now = self._timer.clock.now()  # not the turn's time",
            "now = self._timer.now  # not the clock's",
        ),
        (
            "a release of a fair lock does not follow its slot when that has MOVED",
            "engine/requests/base.py",
            "            call = call.declared()  # so a cluster's node that does not own the key names the one that does\n",
            "            pass\n",
        ),
        (
            "a lease is renewed at a master that Sentinels have replaced, and another one is granted",
            "engine/topology/sentinel.py",
            "            node.leave_for(masters, error)\n",
            "            pass\n",
        ),
        (
            "a redirected query moves a lease that is in a renewal",
            "engine/renewal/checks.py",
            "        self._asked()\n        self.node = self.node_on(shard)\n        self.resend()\n",
            "        super().redirect_to(shard)\n",
        ),
        (
            "an extended lease that has moved to a node without a connection is not checked",
            "engine/renewal/checks.py",
            "            self._renewer.node.connect()",
            "            pass",
        ),
        (
            "the keys that are watched keep leases that have ended",
            "engine/renewal/tracking.py",
            "        if self._by_key.get(lease.key) is lease:\n            del self._by_key[lease.key]\n",
            "",
        ),
    )
)
