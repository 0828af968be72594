/** Shows the report of the trace, a page that the package writes, in a tab of its own. */

import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { ColorThemeKind, ViewColumn, window, type ExtensionContext } from "vscode";

import { run } from "./childProcess";
import { tracePage } from "./commandLine";
import { inColours } from "./pageColours";
import type { Python } from "./python";
import { pathSetting } from "./settings";

/** Failures are shown: the user has asked for it. */
export async function showTracePage(
  context: ExtensionContext,
  python: Python | undefined,
): Promise<void> {
  try {
    if (python === undefined) throw new Error("no Python with the package runs yet.");
    const file = join(context.globalStorageUri.fsPath, "trace.html");
    await run(tracePage(python.path, pathSetting("trace.path"), file), { timeoutMs: 60_000 });
    show(await readFile(file, "utf8"));
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    void window.showErrorMessage(`SpecEngine has no trace page: ${reason}`);
  }
}

function show(page: string): void {
  const panel = window.createWebviewPanel(
    "specengine.trace",
    "SpecEngine Trace",
    ViewColumn.Active,
    { enableScripts: true },
  );
  const { kind } = window.activeColorTheme;
  const isDark = kind === ColorThemeKind.Dark || kind === ColorThemeKind.HighContrast;
  panel.webview.html = inColours(page, isDark);
}
