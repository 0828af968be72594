/** The settings that package.json declares, as the user has set them. */

import { homedir } from "node:os";
import { join } from "node:path";
import { workspace, type ExtensionContext } from "vscode";

import { serverKeys, serverSettings } from "./serverSettings";

/** Return what the server is told; in a folder that is not trusted, VS Code leaves its part out. */
export function settingsForServer(context: ExtensionContext): object {
  const values = workspace.getConfiguration("specengine");
  return serverSettings(serverKeys(declared(context)), (key) => values.get(key));
}

/** Return the settings that differ from their defaults, by full name. */
export function changedSettings(context: ExtensionContext): Record<string, unknown> {
  const all = workspace.getConfiguration();
  const isChanged = (key: string) =>
    JSON.stringify(all.get(key)) !== JSON.stringify(all.inspect(key)?.defaultValue);
  const changed = declared(context).filter(isChanged);
  return Object.fromEntries(changed.map((key) => [key, all.get(key)]));
}

/** Return the path in a setting, with `~` for the home folder; undefined when it is empty. */
export function pathSetting(name: string): string | undefined {
  const text = workspace.getConfiguration("specengine").get(name, "").trim();
  if (text === "") return undefined;
  return text.startsWith("~") ? join(homedir(), text.slice(1)) : text;
}

function declared(context: ExtensionContext): string[] {
  const { contributes } = context.extension.packageJSON as {
    contributes: { configuration: { properties: Record<string, unknown> }[] };
  };
  return contributes.configuration.flatMap((section) => Object.keys(section.properties));
}
