/** A reward queue's storage in a file, for Node: killing the process at any instant loses nothing. */

import {
  closeSync,
  linkSync,
  openSync,
  readFileSync,
  readdirSync,
  renameSync,
  rmSync,
  truncateSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { basename, dirname, resolve } from "node:path";
import { QueueError } from "./errors.js";
import type { QueueStorage } from "./queue.js";

const FREE = "free"; // what a lock says once its process has closed the queue
const held = new Set<string>(); // the files that this process uses

/** A file that is only appended to, until nothing waits. One process at a time may use it. */
export class FileStorage implements QueueStorage {
  private readonly path: string;
  private readonly lock: string;
  private file: number;

  constructor(path: string) {
    this.path = resolve(path);
    this.lock = acquire(this.path);
    this.file = openSync(this.path, "a");
  }

  read(): string {
    return readFileSync(this.path, "utf8");
  }

  append(text: string): void {
    const bytes = Buffer.from(text);
    for (let written = 0; written < bytes.length; ) written += writeSync(this.file, bytes, written);
  }

  replace(text: string): void {
    if (text === "") {
      truncateSync(this.path);
      return;
    }
    writeFileSync(`${this.path}.new`, text, { flush: true } as object);
    closeSync(this.file);
    renameSync(`${this.path}.new`, this.path);
    this.file = openSync(this.path, "a");
  }

  close(): void {
    closeSync(this.file);
    held.delete(this.path);
    writeFileSync(this.lock, FREE);
  }
}

/**
 * Make sure that no other process uses the file: two would send each other's rewards, and lose some. Returns the lock.
 *
 * The newest of the numbered locks holds: the id of its process, or that it is free. Whoever takes over from a process
 * that is gone makes the next number, which only one can. The newest lock is never removed, so numbers only grow, and
 * whoever was too slow finds a newer one.
 */
function acquire(path: string): string {
  const locks = listLocks(path);
  const newest = locks.at(-1);
  const name = newest === undefined ? "" : makeLockName(path, newest);
  if (held.has(path) || (name && isHeld(name))) {
    throw new QueueError(`${path} is in use by another reward queue; if it is not, remove ${path}.lock.*`);
  }
  const number = (newest ?? 0) + 1;
  const lock = makeLockName(path, number);
  const draft = `${path}.lock-${process.pid}-${crypto.randomUUID()}`;
  try {
    writeFileSync(draft, String(process.pid));
    linkSync(draft, lock); // unlike a new file, it is never seen empty; fails if there is one
  } catch (error) {
    throw new QueueError(`${path} cannot be locked, or another reward queue has just locked it`, { cause: error });
  } finally {
    rmSync(draft, { force: true });
  }
  if (listLocks(path).at(-1) !== number) {
    rmSync(lock);
    throw new QueueError(`${path} is in use by another reward queue`);
  }
  for (const old of locks) rmSync(makeLockName(path, old), { force: true });
  held.add(path);
  return lock;
}

function makeLockName(path: string, number: number): string {
  return `${path}.lock.${number}`;
}

/** The numbers of a file's locks, the newest last. */
function listLocks(path: string): number[] {
  const start = `${basename(path)}.lock.`;
  const ends = readdirSync(dirname(path)).filter((name) => name.startsWith(start));
  return ends.map((name) => Number(name.slice(start.length))).filter(Number.isInteger).sort((a, b) => a - b);
}

function isHeld(lock: string): boolean {
  let text: string;
  try {
    text = readFileSync(lock, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return true; // a newer one has just replaced it
    throw error;
  }
  return text !== FREE && isOther(Number(text));
}

/** Whether this is a process, and not this one: in a container, each life of a program may have the same id. */
function isOther(id: number): boolean {
  if (!(id > 0) || id === process.pid) return false;
  try {
    process.kill(id, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EPERM";
  }
}
