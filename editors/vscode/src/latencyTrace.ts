/**
 * Joins the server's line about a suggestion with the time that the editor measured.
 *
 * Either may come first: the server logs when its engine has counted, the editor measures when it
 * has the answer. They meet by the version of the document.
 */

export interface TraceLine {
  readonly version: number;
  readonly outcome: string;
  readonly totalMs: number;
}

const NUM_REMEMBERED = 8;

/** Return what a line of the server's log says of a request, if it is one of these lines. */
export function readTraceLine(line: string): TraceLine | undefined {
  const match = /^#\d+ v(-?\d+) .*?: ([a-z]+)(?: \([^)]*\))? (\d+) ms/.exec(line);
  if (match === null) return undefined;
  const [, version, outcome = "", totalMs] = match;
  return { version: Number(version), outcome, totalMs: Number(totalMs) };
}

export class LatencyTrace {
  private readonly measured = new Map<number, number>();
  private pending: { version: number; line: string } | undefined;

  constructor(private readonly onLine: (line: string) => void) {}

  /** Take a line of the server in; lines of requests that showed nothing go through. */
  take(line: string, trace: TraceLine): void {
    this.flush();
    if (!showsText(trace.outcome)) {
      this.onLine(line);
      return;
    }
    const keyMs = this.measured.get(trace.version);
    this.measured.delete(trace.version);
    if (keyMs === undefined) this.pending = { version: trace.version, line };
    else this.onLine(joined(line, keyMs));
  }

  /** Take in how long it took from the key until the editor had the text. */
  answered(version: number, keyMs: number): void {
    if (this.pending?.version === version) {
      this.onLine(joined(this.pending.line, keyMs));
      this.pending = undefined;
      return;
    }
    this.measured.set(version, keyMs);
    const [oldest] = this.measured.keys();
    if (this.measured.size > NUM_REMEMBERED && oldest !== undefined) this.measured.delete(oldest);
  }

  /** Write a line whose answer the editor has thrown away. */
  private flush(): void {
    if (this.pending !== undefined) this.onLine(this.pending.line);
    this.pending = undefined;
  }
}

function joined(line: string, keyMs: number): string {
  return `${line}; key to ghost text ${Math.round(keyMs)} ms`;
}

function showsText(outcome: string): boolean {
  return ["shown", "cached", "adopted"].includes(outcome);
}
