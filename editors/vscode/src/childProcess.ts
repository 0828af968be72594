/** Runs a command line to its end, away from the folder that is open. */

import { spawn } from "node:child_process";
import { tmpdir } from "node:os";
import { createInterface } from "node:readline";

import type { CommandLine } from "./commandLine";

export interface Options {
  readonly timeoutMs?: number;
  readonly signal?: AbortSignal;
  readonly onLine?: (line: string) => void;
}

/** Return what it writes to stdout; throws when it fails, cannot be started or takes too long. */
export async function run(line: CommandLine, options: Options = {}): Promise<string> {
  const child = spawn(line.command, line.args, {
    cwd: tmpdir(),
    stdio: ["ignore", "pipe", "pipe"],
    ...(options.signal === undefined ? {} : { signal: options.signal }),
    ...(options.timeoutMs === undefined ? {} : { timeout: options.timeoutMs }),
  });
  const output: string[] = [];
  let lastError = "";
  createInterface({ input: child.stdout }).on("line", (text) => {
    output.push(text);
    options.onLine?.(text);
  });
  createInterface({ input: child.stderr }).on("line", (text) => {
    lastError = text;
    options.onLine?.(text);
  });
  const ending = await new Promise<string>((resolve, reject) => {
    child.on("error", reject);
    child.on("close", (code, signal) => {
      resolve(code === null ? `was ended by ${String(signal)}` : code === 0 ? "" : `code ${code}`);
    });
  });
  if (ending !== "") throw new Error(`${line.command}: ${ending}. ${lastError}`.trimEnd());
  return output.join("\n");
}
