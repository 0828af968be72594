/**
 * What the engine is doing, as the server tells it.
 *
 * A server that sends no `specengine/status` is understood by the line that it logs on each change.
 */

export const STATUS_METHOD = "specengine/status";

const STATES = ["starting", "loading", "ready", "failed", "unavailable"] as const;
export type EngineState = (typeof STATES)[number];

export interface EngineStatus {
  readonly state: EngineState;
  readonly model: string;
  readonly drafter: string;
  /** Of loading, 0 to 1. */
  readonly progress: number;
  /** One line for people. */
  readonly detail: string;
}

/** Return the status in a notification, if it is one. */
export function readStatus(params: unknown): EngineStatus | undefined {
  if (typeof params !== "object" || params === null) return undefined;
  const given = params as Record<string, unknown>;
  const state = STATES.find((known) => known === given.state);
  if (state === undefined) return undefined;
  const progress = typeof given.progress === "number" ? given.progress : 0;
  return {
    state,
    model: text(given.model),
    drafter: text(given.drafter),
    progress: Math.min(1, Math.max(0, progress)),
    detail: text(given.detail),
  };
}

/** Return the status in a line of the server's log, if it tells one. */
export function readStatusLine(line: string): EngineStatus | undefined {
  const match = /^engine (loading|ready|failed): (.*?), (.*?)\. ?(.*)$/.exec(line);
  if (match === null) return undefined;
  const [, state, model = "", drafter = "", detail = ""] = match;
  return readStatus({ state, model, drafter, detail, progress: state === "ready" ? 1 : 0 });
}

function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}
