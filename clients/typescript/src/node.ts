/** A reward queue's storage in a file, for Node: killing the process at any instant loses nothing. */

import { closeSync, existsSync, openSync, readFileSync, renameSync, rmSync, truncateSync, writeFileSync, writeSync } from "node:fs";
import { resolve } from "node:path";
import { QueueError } from "./errors.js";
import type { QueueStorage } from "./queue.js";

const held = new Set<string>(); // the files that this process uses

/** A file that is only appended to, until nothing waits. One process at a time may use it. */
export class FileStorage implements QueueStorage {
  private readonly path: string;
  private readonly lock: string;
  private file: number;

  constructor(path: string) {
    this.path = resolve(path);
    this.lock = `${this.path}.lock`;
    this.acquire();
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
    rmSync(this.lock, { force: true });
  }

  /** Make sure that no other process uses the file: two would send each other's rewards, and lose some. */
  private acquire(): void {
    if (held.has(this.path) || (existsSync(this.lock) && isOther(Number(readFileSync(this.lock, "utf8"))))) {
      throw new QueueError(`${this.path} is in use by another reward queue; if it is not, remove ${this.lock}`);
    }
    rmSync(this.lock, { force: true }); // its process was killed
    try {
      writeFileSync(this.lock, String(process.pid), { flag: "wx" });
    } catch (error) {
      throw new QueueError(`${this.path} is in use by another reward queue`, { cause: error });
    }
    held.add(this.path);
  }
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
