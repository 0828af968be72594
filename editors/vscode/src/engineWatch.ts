/**
 * Keeps what is known of the engine, from whatever the server says.
 *
 * A server that sends `specengine/status` is believed, and nothing else is. An older one is
 * understood by its log, its progress, its messages, and by the suggestions that arrive.
 */

import { readStatus, readStatusLine, type EngineStatus } from "./engineStatus";

export class EngineWatch {
  private isTold = false;
  private status: EngineStatus | undefined;
  private lastReady: EngineStatus | undefined;

  constructor(private readonly onStatus: (status: EngineStatus) => void) {}

  /** A `specengine/status` has come. */
  takeNotification(params: unknown): void {
    const status = readStatus(params);
    if (status === undefined) return;
    this.isTold = true;
    this.set(status);
  }

  takeLine(line: string): void {
    const status = readStatusLine(line);
    if (status !== undefined) this.guess(status);
  }

  takeProgress(progress: number, detail: string): void {
    if (this.status?.state === "loading") this.guess({ ...this.status, progress, detail });
  }

  /** The server has shown an error: it has given up, unless the model has failed. */
  takeErrorMessage(message: string): void {
    const { model = "", drafter = "", state } = this.status ?? {};
    if (state === "failed") return;
    this.guess({ state: "unavailable", model, drafter, progress: 0, detail: message });
  }

  /** A suggestion has come, so there is an engine. */
  takeSuggestion(): void {
    if (this.status?.state === "unavailable" && this.lastReady) this.guess(this.lastReady);
  }

  private guess(status: EngineStatus): void {
    if (!this.isTold) this.set(status);
  }

  private set(status: EngineStatus): void {
    this.status = status;
    if (status.state === "ready") this.lastReady = status;
    this.onStatus(status);
  }
}
