import { defineConfig } from "vitest/config";

// Machines may be slow and busy: no test is about time, so none has a limit of its own.
export default defineConfig({ test: { include: ["test/**/*.test.ts"], testTimeout: 600_000, hookTimeout: 600_000 } });
