/** A language client that writes to the log; it shows what the server wants shown, nothing else. */

import { createInterface } from "node:readline";
import type { Readable } from "node:stream";
import { window } from "vscode";
import {
  CloseAction,
  ErrorAction,
  LanguageClient,
  LogMessageNotification,
  MessageType,
  RevealOutputChannelOn,
  ShowMessageNotification,
  type LanguageClientOptions,
  type Middleware,
} from "vscode-languageclient/node";

import type { CommandLine } from "./commandLine";
import { DOCUMENT_SELECTOR } from "./documents";
import type { Log } from "./log";

const SHOW_LOG = "Show Log";

export interface ClientParts {
  readonly line: CommandLine;
  /** Also that of the engine which the server starts. */
  readonly cwd: string;
  readonly settings: () => object;
  readonly middleware: Middleware;
  /** The server has ended without being asked to. */
  readonly onClosed: () => void;
  /** A line that the server logs. */
  readonly onLine: (line: string) => void;
  /** A message that the server shows as an error. */
  readonly onErrorMessage: (message: string) => void;
}

export class QuietClient extends LanguageClient {
  constructor(
    parts: ClientParts,
    private readonly log: Log,
  ) {
    const server = {
      command: parts.line.command,
      args: [...parts.line.args],
      // The engine inherits it: no module is loaded from a working directory.
      options: { cwd: parts.cwd, env: { ...process.env, PYTHONSAFEPATH: "1" } },
    };
    super("specengine", "SpecEngine", server, clientOptions(parts, log));
    this.onNotification(LogMessageNotification.type, ({ type, message }) => {
      if (type === MessageType.Error) log.error(message);
      else parts.onLine(message);
    });
    this.onNotification(ShowMessageNotification.type, ({ type, message }) => {
      if (type === MessageType.Error) parts.onErrorMessage(message);
      void show(type, message, log);
    });
  }

  override error(message: string, data?: unknown): void {
    this.log.error(this.described(message, data));
  }

  override warn(message: string, data?: unknown): void {
    this.log.info(this.described(message, data));
  }

  override info(message: string, data?: unknown): void {
    this.log.info(this.described(message, data));
  }

  private described(message: string, data: unknown): string {
    if (data === undefined || data === null) return message;
    return `${message} ${data instanceof Error ? data.message : JSON.stringify(data)}`;
  }
}

function clientOptions(parts: ClientParts, log: Log): LanguageClientOptions {
  return {
    documentSelector: DOCUMENT_SELECTOR,
    outputChannel: log.channel,
    revealOutputChannelOn: RevealOutputChannelOn.Never,
    initializationOptions: parts.settings,
    initializationFailedHandler: () => false,
    errorHandler: {
      error: () => ({ action: ErrorAction.Continue, handled: true }),
      closed: () => {
        parts.onClosed();
        return {
          action: CloseAction.DoNotRestart,
          handled: true,
          message: "The server has ended.",
        };
      },
    },
    middleware: parts.middleware,
    stdioOptions: {
      stdout: (input) => {
        pipe(input, log);
      },
      stderr: (input) => {
        pipe(input, log);
      },
    },
  };
}

async function show(type: MessageType, message: string, log: Log): Promise<void> {
  const shown =
    type === MessageType.Error
      ? window.showErrorMessage(message, SHOW_LOG)
      : type === MessageType.Warning
        ? window.showWarningMessage(message, SHOW_LOG)
        : window.showInformationMessage(message);
  if ((await shown) === SHOW_LOG) log.channel.show();
}

function pipe(input: Readable, log: Log): void {
  createInterface({ input }).on("line", (line) => {
    log.info(line);
  });
}
