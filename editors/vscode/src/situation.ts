/** All that the status bar and the menu tell about, as one value. */

import type { EngineStatus } from "./engineStatus";

export type ServerState = "missing" | "installing" | "starting" | "running" | "failed";

export interface Situation {
  readonly server: ServerState;
  /** Why the server is missing or failed. */
  readonly reason: string;
  readonly engine: EngineStatus | undefined;
  /** From the last key to its ghost text. */
  readonly lastMs: number | undefined;
  /** Whether the last request ended with an error. */
  readonly hasFailed: boolean;
  /** In milliseconds since the epoch; infinite until resumed, undefined when not paused. */
  readonly pausedUntil: number | undefined;
  /** Of the active editor. */
  readonly language: string | undefined;
  readonly isLanguageOff: boolean;
}

export const AT_START: Situation = {
  server: "starting",
  reason: "",
  engine: undefined,
  lastMs: undefined,
  hasFailed: false,
  pausedUntil: undefined,
  language: undefined,
  isLanguageOff: false,
};

/** Holds the present one, and tells when it has changed. */
export class Board {
  private value = AT_START;

  constructor(private readonly onChange: (situation: Situation) => void) {}

  get current(): Situation {
    return this.value;
  }

  update(changes: Partial<Situation>): void {
    this.value = { ...this.value, ...changes };
    this.onChange(this.value);
  }
}
