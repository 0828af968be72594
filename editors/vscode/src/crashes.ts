/** Decides how long to wait before the server is started again, and when to give up. */

const FIRST_PAUSE_MS = 500;
const MAX_CRASHES = 4;
const WINDOW_MS = 180_000;

export class Crashes {
  private times: number[] = [];

  /** Note a crash; return the pause before the next start, or undefined after too many. */
  pauseMs(now: number): number | undefined {
    this.times = [...this.times.filter((time) => now - time < WINDOW_MS), now];
    if (this.times.length > MAX_CRASHES) return undefined;
    return FIRST_PAUSE_MS * 2 ** (this.times.length - 1);
  }

  /** The user has asked for a start: count from nothing. */
  forget(): void {
    this.times = [];
  }
}
