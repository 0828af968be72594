/** Opens the walkthrough at the first start: VS Code does so only for what is installed in its window. */

import { commands, workspace, type ExtensionContext } from "vscode";

const GREETED = "greeted";

export async function greet(context: ExtensionContext): Promise<void> {
  const settings = workspace.getConfiguration("workbench.welcomePage.walkthroughs");
  if (!settings.get<boolean>("openOnInstall", true) || context.globalState.get(GREETED) === true)
    return;
  await context.globalState.update(GREETED, true);
  await commands.executeCommand(
    "workbench.action.openWalkthrough",
    `${context.extension.id}#start`,
  );
}
