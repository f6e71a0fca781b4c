/** A real service in a process of its own, which a test may kill and start again at the same address. */

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const ROOT = resolve(fileURLToPath(import.meta.url), "../../../..");
const PYTHON = process.env.UNDERCURRENT_PYTHON ?? join(ROOT, ".venv/bin/python");

export const CAMPAIGN = {
  name: "spring-offers",
  actions: ["none", "email", "call"],
  variables: [
    { name: "risk", levels: ["low", "middle", "high"] },
    { name: "revenue", cuts: [10_000, 36_000, 54_000] },
  ],
};
export const CUSTOMER = { risk: "low", revenue: 36_000 };

export class Service {
  url = "";
  readonly folder = mkdtempSync(join(tmpdir(), "undercurrent-"));
  private process: ChildProcess | undefined;

  async start(): Promise<void> {
    const port = this.url === "" ? "0" : new URL(this.url).port;
    const database = `sqlite:///${join(this.folder, "service.db")}`;
    const command = ["-m", "service.cli", "serve", "--port", port, "--database-url", database];
    const child = spawn(PYTHON, command, { cwd: ROOT, stdio: ["ignore", "pipe", "ignore"] });
    this.process = child;
    for await (const line of createInterface({ input: child.stdout })) {
      this.url = line.trim().split(" ").at(-1) ?? "";
      return;
    }
    throw new Error("the service did not start");
  }

  async kill(): Promise<void> {
    const child = this.process;
    if (child === undefined || child.exitCode !== null || child.signalCode !== null) return;
    const ended = once(child, "exit");
    child.kill("SIGKILL");
    await ended;
  }
}
