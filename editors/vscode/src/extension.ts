/** Wires the parts together; each knows only what it is given here. */

import { workspace, type ConfigurationChangeEvent, type ExtensionContext } from "vscode";
import { DidChangeConfigurationNotification } from "vscode-languageclient/node";

import { run } from "./childProcess";
import { chooseModel } from "./chooseModel";
import { versionProbe } from "./commandLine";
import { registerCommands } from "./commands";
import { greet } from "./greeting";
import { install, offerInstallation } from "./installer";
import { KeyTimes } from "./keyTimes";
import { Log } from "./log";
import { makeClient, type Surroundings } from "./makeClient";
import { onInterpreterChange, pythonPlaces } from "./pythonPlaces";
import { showReport } from "./report";
import { Server } from "./server";
import { settingsForServer } from "./settings";
import { Board } from "./situation";
import { StatusBar } from "./statusBar";
import { Switches } from "./switches";
import { showTracePage } from "./tracePage";

let running: Server | undefined;

export function activate(context: ExtensionContext): void {
  const statusBar = new StatusBar();
  const board = new Board((situation) => {
    statusBar.render(situation);
  });
  const around: Surroundings = {
    log: new Log(),
    board,
    switches: new Switches(board),
    keys: new KeyTimes(),
    settings: () => settingsForServer(context),
    cwd: context.globalStorageUri.fsPath,
  };
  const server = (running = makeServer(context, around));
  context.subscriptions.push(
    statusBar,
    around.log,
    around.switches,
    around.keys,
    workspace.onDidGrantWorkspaceTrust(() => server.refresh()),
    workspace.onDidChangeConfiguration((change) => {
      takeChange(change, server, around);
    }),
    ...registerCommands({
      situation: () => board.current,
      pauseUntil: (time) => {
        around.switches.pauseUntil(time);
      },
      resume: () => {
        around.switches.resume();
      },
      restart: () => server.restart(),
      chooseModel: () => chooseModel(server.python),
      showTrace: () => {
        around.log.channel.show();
      },
      openTracePage: () => showTracePage(context, server.python),
      report: () => showReport(context, server.python, board.current, around.log.lines),
      install: async () => {
        if (await install(context, around)) await server.restart();
      },
    }),
  );
  void greet(context);
  void server.restart();
  void onInterpreterChange(() => void server.refresh());
}

export async function deactivate(): Promise<void> {
  await running?.dispose();
}

function makeServer(context: ExtensionContext, around: Surroundings): Server {
  return new Server({
    places: () => pythonPlaces(context),
    probe: versionOf,
    makeClient: (python, onClosed) => makeClient(around, python, onClosed),
    onState: (server, reason) => {
      around.board.update({ server, reason });
      if (server === "missing") void offerInstallation(context);
    },
    onError: (line) => {
      around.log.error(line);
    },
  });
}

async function versionOf(python: string): Promise<string | undefined> {
  try {
    const version = await run(versionProbe(python), { timeoutMs: 15_000 });
    return /^\d+\.\d+\S*$/.test(version) ? version : undefined;
  } catch {
    return undefined; // It is not there, or does not have the package.
  }
}

function takeChange(
  change: ConfigurationChangeEvent,
  server: Server,
  { settings }: Surroundings,
): void {
  if (!change.affectsConfiguration("specengine")) return;
  if (change.affectsConfiguration("specengine.python")) void server.refresh();
  else if (server.client?.isRunning() === true) {
    void server.client.sendNotification(DidChangeConfigurationNotification.type, {
      settings: settings(),
    });
  }
}
