/** Where a Python may be, as VS Code and its Python extension know it. */

import { existsSync } from "node:fs";
import { join } from "node:path";
import { extensions, workspace, type Event, type ExtensionContext, type Uri } from "vscode";

import { PATH_PYTHONS, pythonOf } from "./commandLine";
import type { Places } from "./python";
import { pathSetting } from "./settings";

/** The part of the Python extension's interface that is used here. */
interface PythonExtension {
  readonly environments: {
    getActiveEnvironmentPath(): { readonly path: string };
    resolveEnvironment(environment: {
      readonly path: string;
    }): Promise<{ readonly executable: { readonly uri?: Uri } } | undefined>;
    readonly onDidChangeActiveEnvironmentPath: Event<unknown>;
  };
}

/** Return the folder of the environment that this extension makes. */
export function ownFolder(context: ExtensionContext): string {
  return join(context.globalStorageUri.fsPath, "python");
}

export async function pythonPlaces(context: ExtensionContext): Promise<Places> {
  const own = pythonOf(ownFolder(context));
  return {
    setting: pathSetting("python"),
    // An environment may lie in the folder itself, and starting it would run what is in there.
    interpreter: workspace.isTrusted ? await selectedInterpreter() : undefined,
    own: existsSync(own) ? own : undefined,
    path: PATH_PYTHONS,
  };
}

/** Call back when another interpreter is selected; nothing happens without the Python extension. */
export async function onInterpreterChange(callback: () => void): Promise<void> {
  const python = await pythonExtension();
  python?.environments.onDidChangeActiveEnvironmentPath(callback);
}

async function selectedInterpreter(): Promise<string | undefined> {
  const environments = (await pythonExtension())?.environments;
  if (environments === undefined) return undefined;
  const active = environments.getActiveEnvironmentPath();
  const resolved = await environments.resolveEnvironment(active);
  return resolved?.executable.uri?.fsPath;
}

async function pythonExtension(): Promise<PythonExtension | undefined> {
  try {
    return await extensions.getExtension<PythonExtension>("ms-python.python")?.activate();
  } catch {
    return undefined; // It has said so itself.
  }
}
