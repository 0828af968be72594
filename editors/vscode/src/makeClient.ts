/** Makes the language client, and leads what the server says to the log and the board. */

import { mkdirSync } from "node:fs";

import { languageServer } from "./commandLine";
import { STATUS_METHOD } from "./engineStatus";
import { EngineWatch } from "./engineWatch";
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
  board.update({ engine: undefined, lastMs: undefined, hasFailed: false });
  mkdirSync(cwd, { recursive: true });
  const engine = new EngineWatch((status) => {
    board.update({ engine: status });
  });
  const latency = new LatencyTrace((line) => {
    log.info(line);
  });

  const middleware = suggestionMiddleware(keys, {
    isOn: (language) => switches.isOn(language),
    onAnswer: (version, keyMs) => {
      latency.answered(version, keyMs);
      board.update({ lastMs: keyMs, hasFailed: false });
      engine.takeSuggestion();
    },
    onLoading: (progress, detail) => {
      engine.takeProgress(progress, detail);
    },
  });

  const onLine = (line: string) => {
    const trace = readTraceLine(line);
    if (trace === undefined) {
      log.info(line);
      engine.takeLine(line);
      return;
    }
    latency.take(line, trace);
    if (trace.outcome === "error") board.update({ hasFailed: true });
  };

  const client = new QuietClient(
    {
      line: languageServer(python.path),
      cwd,
      settings,
      middleware,
      onClosed,
      onLine,
      onErrorMessage: (message) => {
        engine.takeErrorMessage(message);
      },
    },
    log,
  );
  client.onNotification(STATUS_METHOD, (params: unknown) => {
    engine.takeNotification(params);
  });
  return client;
}
