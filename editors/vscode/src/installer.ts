/** Makes an environment for the package, with the wheel that lies in the extension. */

import { readdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { ProgressLocation, commands, window, workspace, type ExtensionContext } from "vscode";

import { run } from "./childProcess";
import { BASE_PYTHONS, baseProbe, installation } from "./commandLine";
import type { Log } from "./log";
import { ownFolder } from "./pythonPlaces";
import type { Board } from "./situation";

const OFFERED = "installationOffered";
const QUESTION = "Install SpecEngine into a Python environment of its own?";
const DETAIL =
  "pip fetches its dependencies, torch among them (1.5 to 4 GB), and the default model (93 MB). Afterwards nothing needs a network.";

/** Offer it in a message, once and never again; the status bar keeps saying what is missing. */
export async function offerInstallation(context: ExtensionContext): Promise<void> {
  if (context.globalState.get(OFFERED) === true) return;
  await context.globalState.update(OFFERED, true);
  const answer = await window.showInformationMessage(
    "SpecEngine needs a Python that has its package.",
    "Install…",
    "Choose Python…",
  );
  if (answer === "Install…") await commands.executeCommand("specengine.install");
  if (answer === "Choose Python…") await commands.executeCommand("specengine.choosePython");
}

/** Ask, then install; return whether it is there. Failures are shown: the user has asked for it. */
export async function install(
  context: ExtensionContext,
  { board, log }: { board: Board; log: Log },
): Promise<boolean> {
  const wheel = findWheel(context);
  if (wheel === undefined) {
    void window.showErrorMessage(
      "This build of the extension has no package in it. Install SpecEngine as its README says, then choose that Python.",
    );
    return false;
  }
  const answer = await window.showInformationMessage(
    QUESTION,
    { modal: true, detail: DETAIL },
    "Install",
  );
  if (answer !== "Install") return false;
  const before = board.current;
  board.update({ server: "installing", reason: "" });
  try {
    await window.withProgress(
      { location: ProgressLocation.Notification, title: "SpecEngine", cancellable: true },
      async (progress, token) => {
        const abort = new AbortController();
        token.onCancellationRequested(() => {
          abort.abort();
        });
        await installInto(ownFolder(context), wheel, log, abort.signal, (message) => {
          progress.report({ message });
        });
      },
    );
    return true;
  } catch (error) {
    rmSync(ownFolder(context), { recursive: true, force: true });
    const reason = error instanceof Error ? error.message : String(error);
    log.error(`the installation failed: ${reason}`);
    board.update({ server: before.server, reason: before.reason });
    void offerLog(`SpecEngine could not be installed: ${reason}`, log);
    return false;
  }
}

async function installInto(
  folder: string,
  wheel: string,
  log: Log,
  signal: AbortSignal,
  say: (text: string) => void,
): Promise<void> {
  say("looks for Python 3.11 or newer…");
  const base = await findBase();
  if (base === undefined) {
    throw new Error(
      "no Python 3.11 or newer with venv was found (Debian, Ubuntu: apt install python3-venv).",
    );
  }
  const pipArguments = workspace.getConfiguration("specengine").get<string[]>("pipArguments", []);
  const steps = ["makes an environment…", "installs the package…", "fetches the default model…"];
  for (const [index, line] of installation(base, folder, wheel, pipArguments).entries()) {
    say(steps[index] ?? "");
    log.info(`${line.command} ${line.args.join(" ")}`);
    await run(line, {
      signal,
      onLine: (text) => {
        log.info(text);
      },
    });
  }
}

async function findBase(): Promise<string | undefined> {
  for (const python of BASE_PYTHONS) {
    try {
      await run(baseProbe(python), { timeoutMs: 10_000 });
      return python;
    } catch {
      // Not there, or too old: the next one.
    }
  }
  return undefined;
}

function findWheel(context: ExtensionContext): string | undefined {
  const folder = join(context.extensionPath, "wheel");
  try {
    const name = readdirSync(folder).find((file) => file.endsWith(".whl"));
    return name === undefined ? undefined : join(folder, name);
  } catch {
    return undefined;
  }
}

async function offerLog(message: string, log: Log): Promise<void> {
  if ((await window.showErrorMessage(message, "Show Log")) === "Show Log") log.channel.show();
}
