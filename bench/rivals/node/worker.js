// The benchmark worker of the rivals on Node: node --expose-gc worker.js PROGRAM MODE URL OPTIONS.
//
// PROGRAM is a module of this directory; the modes, OPTIONS (a JSON object) and the lines on standard input and output
// are those of all benchmark workers. To add a rival: one module whose default export has the methods of NodeRedlock.

import { once } from "node:events";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { Worker } from "node:worker_threads";
import { Redis } from "ioredis";

// At one lock after the other, each acquire would wait for a round trip; so many at a time keep the connection busy.
const ACQUIRED_AT_A_TIME = 128;
// The names of a caller in mode pairs: a new lock each time, but no endless number of keys.
const NAMES_PER_CALLER = 64;
const LOOK_MS = 2;

// What users have been told, kept in memory until the next result is written: printing would delay what is measured.
const losses = [];
let lossesWritten = 0;

// Returns CLOCK_MONOTONIC in seconds, which is one clock for all processes of a machine.
const now = () => Number(process.hrtime.bigint()) / 1e9;

const say = (word, text = "") => process.stdout.write(`${word} ${text}`.replace(/\s+/g, " ").trim() + "\n");

// Calls work for all numbers below count, so many at a time.
async function each(count, atATime, work) {
  let next = 0;
  const takeNumbers = async () => {
    while (next < count) await work(next++);
  };
  await Promise.all(Array.from({ length: Math.min(count, atATime) }, takeNumbers));
}

// Acquires all locks and keeps them.
async function hold(rival, { locks, first = 0, prefix }) {
  const lost = new Set();
  const releases = new Array(locks);
  const ends = new Array(locks);

  const acquire = (number) =>
    new Promise((held, failed) => {
      const routine = (signal) =>
        new Promise((release) => {
          signal.addEventListener("abort", () => {
            lost.add(number);
            losses.push(`${first + number} ${now().toFixed(9)} ${signal.error?.message}`);
          });
          releases[number] = release;
          held();
        });
      ends[number] = rival.keep(`${prefix}${first + number}`, routine);
      ends[number].catch(failed); // which does nothing once it is held
    });

  await each(locks, ACQUIRED_AT_A_TIME, acquire);
  return async (argument) => {
    if (argument === "read") {
      globalThis.gc();
      return { renewed: rival.renewed(), lost: losses.length, heap: process.memoryUsage().heapUsed };
    }
    if (argument !== "release") throw new Error(`no ${argument}`);
    await each(locks, ACQUIRED_AT_A_TIME, async (number) => {
      if (lost.has(number)) return; // there is nothing left to release
      releases[number]();
      await ends[number];
    });
    return {};
  };
}

// Acquires and releases free locks, by promises on the one thread that runs JavaScript.
async function pairs(rival, { callers, kind, warm_s, spin = 0 }) {
  if (kind === "threads" && callers > 1) throw new Error("no threads");
  for (let thread = 0; thread < spin; thread++) {
    await once(new Worker("let number = 0; for (;;) number += 1;", { eval: true }), "online");
  }
  const make = async (seconds) => {
    const until = now() + seconds;
    let made = 0;
    await each(callers, callers, async (caller) => {
      for (let number = 0; now() < until; number++) {
        await rival.use(`p:${caller}:${number % NAMES_PER_CALLER}`, async () => {});
        made++;
      }
    });
    return made;
  };
  await make(warm_s);
  return async (argument) => {
    const began = now();
    return { pairs: await make(Number(argument)), seconds: now() - began };
  };
}

// Takes turns with another process.
async function handover(rival, { name, hold_s }, url) {
  const client = new Redis(url);
  const turns = `${name}:turns`;
  await client.ping();
  return async (argument) => {
    const times = Number(argument);
    const moments = [];
    for (let number = 0; number < times; number++) {
      let turn;
      await rival.use(name, async () => {
        const granted = now();
        turn = await client.incr(turns);
        await sleep(hold_s * 1000);
        moments.push([granted, now()]);
      });
      // The other one's turn: a releaser that asked again at once would hand over to itself.
      while (number < times - 1 && Number(await client.get(turns)) === turn) await sleep(LOOK_MS);
    }
    return { moments };
  };
}

// Has all waiters contend for one lock.
async function crowd(rival, { name, waiters, hold_s }) {
  return async (argument) => {
    const grants = new Array(waiters).fill(0);
    const seconds = Number(argument);
    const until = now() + seconds;
    await each(waiters, waiters, async (waiter) => {
      while (now() < until) {
        await rival.use(name, async () => {
          if (now() >= until) return; // what is granted from now on only ends the waiting
          grants[waiter]++;
          await sleep(hold_s * 1000);
        });
      }
    });
    return { grants, seconds };
  };
}

async function main([program, mode, url, text]) {
  const begin = { hold, pairs, handover, crowd }[mode];
  let answer;
  try {
    if (!begin) throw new Error(`no ${mode}`);
    const { default: Rival } = await import(`./${program}.js`);
    const options = JSON.parse(text);
    const rival = await Rival.connect(url, options.timeout_s);
    answer = await begin(rival, options, url);
  } catch (error) {
    say("failed", error.message);
    return;
  }
  say("up");
  for await (const line of createInterface({ input: process.stdin })) {
    let last;
    try {
      const result = await answer(line.replace(/^go /, ""));
      last = ["result", JSON.stringify(result)];
    } catch (error) {
      last = ["failed", error.message];
    }
    for (; lossesWritten < losses.length; lossesWritten++) say("lost", losses[lossesWritten]);
    say(...last);
  }
}

await main(process.argv.slice(2));
process.exit(0); // connections, timers and threads would keep it alive
