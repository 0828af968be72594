/** Makes the language client, and leads what the server says to the log and the board. */

import { mkdirSync } from "node:fs";

import { languageServer } from "./commandLine";
import { STATUS_METHOD, readStatus, readStatusLine } from "./engineStatus";
import type { KeyTimes } from "./keyTimes";
import { LatencyTrace, readTraceLine } from "./latencyTrace";
import type { Log } from "./log";
import type { Python } from "./python";
import { QuietClient } from "./quietClient";
import type { Board } from "./situation";
import { suggestionMiddleware } from "./suggestions";
import type { Switches } from "./switches";

export interface Surroundings {
  readonly log: Log;
  readonly board: Board;
  readonly switches: Switches;
  readonly keys: KeyTimes;
  readonly settings: () => object;
  /** A folder of the extension's own, made if it is missing. */
  readonly cwd: string;
}

export function makeClient(
  { log, board, switches, keys, settings, cwd }: Surroundings,
  python: Python,
  onClosed: () => void,
): QuietClient {
  log.info(`${python.path} has specengine ${python.version} (${python.source})`);
  board.update({ engine: undefined, lastMs: undefined });
  mkdirSync(cwd, { recursive: true });
  const latency = new LatencyTrace((line) => {
    log.info(line);
  });

  const onLine = (line: string) => {
    const trace = readTraceLine(line);
    if (trace !== undefined) {
      latency.take(line, trace);
      return;
    }
    log.info(line);
    const status = readStatusLine(line);
    if (status !== undefined) board.update({ engine: status });
  };

  const middleware = suggestionMiddleware(keys, {
    isOn: (language) => switches.isOn(language),
    onAnswer: (version, keyMs) => {
      latency.answered(version, keyMs);
      board.update({ lastMs: keyMs });
    },
    onLoading: (progress, detail) => {
      const { engine } = board.current;
      if (engine?.state === "loading") board.update({ engine: { ...engine, progress, detail } });
    },
  });

  const line = languageServer(python.path);
  const client = new QuietClient({ line, cwd, settings, middleware, onClosed, onLine }, log);
  client.onNotification(STATUS_METHOD, (params: unknown) => {
    const status = readStatus(params);
    if (status !== undefined) board.update({ engine: status });
  });
  return client;
}
