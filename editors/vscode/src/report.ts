/** Opens a redacted report in an untitled document; nothing is sent. */

import { homedir, userInfo } from "node:os";
import { env, version, window, workspace, type ExtensionContext } from "vscode";

import type { Python } from "./python";
import { redact } from "./redact";
import { reportText } from "./reportText";
import { changedSettings } from "./settings";
import type { Situation } from "./situation";
import { statusText } from "./statusText";

export async function showReport(
  context: ExtensionContext,
  python: Python | undefined,
  situation: Situation,
  lines: readonly string[],
): Promise<void> {
  const { version: own } = context.extension.packageJSON as { version: string };
  const facts: [string, string][] = [
    ["extension", own],
    ["editor", `${env.appName} ${version}${env.remoteName === undefined ? "" : ", remote"}`],
    ["system", `${process.platform} ${process.arch}`],
    ["package", python === undefined ? "not found" : `${python.version} (${python.source})`],
    ["status", statusText(situation).tooltip.replaceAll(/\s+/g, " ")],
    ["folder is trusted", String(workspace.isTrusted)],
  ];
  const text = reportText({ facts, settings: changedSettings(context), lines });
  const content = redact(text, {
    home: homedir(),
    user: userInfo().username,
    folders: (workspace.workspaceFolders ?? []).map((folder) => folder.uri.fsPath),
  });
  await window.showTextDocument(
    await workspace.openTextDocument({ language: "markdown", content }),
  );
}
