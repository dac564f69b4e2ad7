// node-redlock on ioredis, both with their default settings.

import { Redis } from "ioredis";
import Redlock from "redlock";

export default class NodeRedlock {
  static async connect(url, timeout_s) {
    const client = new Redis(url);
    client.on("error", () => {}); // it connects again; without a listener it prints each error
    await client.ping();
    return new NodeRedlock(new Redlock([client]), Math.round(timeout_s * 1000));
  }

  constructor(redlock, timeoutMs) {
    this.redlock = redlock;
    this.timeoutMs = timeoutMs;
  }

  // Runs routine while the lock is held, and waits for it without a limit; by default it gives up after ten attempts.
  use(name, routine) {
    return this.redlock.using([name], this.timeoutMs, { retryCount: -1 }, routine);
  }

  // The same for a free lock that is renewed after a third of its time-to-live; by default, when 500 ms of it are left.
  keep(name, routine) {
    const automaticExtensionThreshold = (this.timeoutMs * 2) / 3;
    return this.redlock.using([name], this.timeoutMs, { automaticExtensionThreshold }, routine);
  }

  // Returns the number of renewals so far; null, as the package does not tell.
  renewed() {
    return null;
  }
}
