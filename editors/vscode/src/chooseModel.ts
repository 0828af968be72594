/** Lets the user choose a model among those that the engine runs. */

import { ConfigurationTarget, window, workspace, type QuickPickItem } from "vscode";

import { run } from "./childProcess";
import { modelLists } from "./commandLine";
import { readModelList, type ListedModel } from "./modelList";
import type { Python } from "./python";

interface Choice extends QuickPickItem {
  /** Undefined: type a folder or file. */
  readonly model: string | undefined;
}

/** Ask, and write the answer to the user's settings; the server takes it from there. */
export async function chooseModel(python: Python | undefined): Promise<void> {
  const choice = await window.showQuickPick<Choice>(listed(python).then(choices), {
    title: "SpecEngine: Choose Model",
    matchOnDescription: true,
  });
  if (choice === undefined) return;
  const model = choice.model ?? (await askPath());
  if (model === undefined) return;
  await workspace
    .getConfiguration("specengine")
    .update("engine.model", model, ConfigurationTarget.Global);
}

/** Without a Python, or with one that fails, a folder can be chosen still. */
async function listed(python: Python | undefined): Promise<ListedModel[]> {
  if (python === undefined) return [];
  for (const line of modelLists(python.path)) {
    try {
      return readModelList(await run(line, { timeoutMs: 30_000 }));
    } catch {
      continue;
    }
  }
  return [];
}

function choices(models: ListedModel[]): Choice[] {
  const own: Choice = { label: "$(folder-opened) A folder or a .gguf file…", model: undefined };
  return [...models.map(asChoice), own];
}

function asChoice({ name, isDefault, memory, isHere, licence }: ListedModel): Choice {
  const facts = [`${memory} of memory`, licence, isHere ? "on this machine" : "will be downloaded"];
  return {
    label: isDefault ? `${name} (default)` : name,
    description: facts.join(", "),
    model: isDefault ? "" : name,
  };
}

async function askPath(): Promise<string | undefined> {
  const options = { canSelectFiles: true, canSelectFolders: true, title: "SpecEngine: Model" };
  return (await window.showOpenDialog(options))?.[0]?.fsPath;
}
