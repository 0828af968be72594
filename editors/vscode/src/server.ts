/** Owns the language client: finds its Python, starts it, starts it again, ends it. */

import type { Disposable } from "vscode";

import { Crashes } from "./crashes";
import { whyNone, type Places, type Probe, type Python, findPython } from "./python";
import type { QuietClient } from "./quietClient";
import { RestartQueue } from "./restartQueue";
import type { ServerState } from "./situation";

/** A Python that hangs must not block restarts for ever. */
const START_TIMEOUT_MS = 60_000;

export interface ServerParts {
  readonly places: () => Promise<Places>;
  readonly probe: Probe;
  /** Make a client; `onClosed` is called when the server ends by itself. */
  readonly makeClient: (python: Python, onClosed: () => void) => QuietClient;
  readonly onState: (state: ServerState, reason: string) => void;
  readonly onError: (line: string) => void;
}

export class Server implements Disposable {
  private readonly queue = new RestartQueue(() => this.renew());
  private readonly crashes = new Crashes();
  private current: { client: QuietClient; python: Python } | undefined;
  private timer: NodeJS.Timeout | undefined;
  private isForced = false;
  private isDisposed = false;

  constructor(private readonly parts: ServerParts) {}

  /** The running client, if there is one. */
  get client(): QuietClient | undefined {
    return this.current?.client;
  }

  get python(): Python | undefined {
    return this.current?.python;
  }

  /** Start it, or end it and start it anew. */
  restart(): Promise<void> {
    this.isForced = true;
    this.crashes.forget();
    return this.queue.request();
  }

  /** Start it anew if it would run on another Python now. */
  refresh(): Promise<void> {
    return this.queue.request();
  }

  async dispose(): Promise<void> {
    this.isDisposed = true;
    clearTimeout(this.timer);
    await this.end();
  }

  private async renew(): Promise<void> {
    clearTimeout(this.timer);
    const places = await this.parts.places();
    const python = await findPython(places, this.parts.probe);
    const isSame = python !== undefined && python.path === this.python?.path;
    if (isSame && !this.isForced) return;
    this.isForced = false;
    await this.end();
    if (this.isDisposed) return;
    if (python === undefined) this.parts.onState("missing", whyNone(places));
    else await this.start(python);
  }

  private async start(python: Python): Promise<void> {
    this.parts.onState("starting", "");
    const client = this.parts.makeClient(python, () => {
      this.take(client, "The language server has ended.");
    });
    this.current = { client, python };
    try {
      await within(START_TIMEOUT_MS, client.start());
      if (this.client === client) this.parts.onState("running", "");
    } catch (error) {
      client.serverProcess?.kill();
      this.take(client, error instanceof Error ? error.message : String(error));
    }
  }

  /** A client is of no use any more: try again after a pause, or stop trying. */
  private take(client: QuietClient, reason: string): void {
    if (this.client !== client) return;
    this.current = undefined;
    this.parts.onError(reason);
    const pauseMs = this.crashes.pauseMs(Date.now());
    if (pauseMs === undefined) {
      this.parts.onState("failed", `${reason} Click to start it again, or to see the log.`);
      return;
    }
    this.parts.onState("starting", reason);
    this.timer = setTimeout(() => void this.queue.request(), pauseMs);
  }

  private async end(): Promise<void> {
    const client = this.client;
    this.current = undefined;
    try {
      await client?.dispose();
    } catch (error) {
      // It was not running yet, or does not answer: then its process is all that is left to end.
      client?.serverProcess?.kill();
      this.parts.onError(String(error));
    }
  }
}

async function within<T>(timeoutMs: number, awaited: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_resolve, reject) => {
    timer = setTimeout(() => {
      reject(new Error(`The language server did not start within ${timeoutMs / 1000} s.`));
    }, timeoutMs);
  });
  try {
    return await Promise.race([awaited, late]);
  } finally {
    clearTimeout(timer);
  }
}
