/** The status bar item; a click opens the menu. */

import {
  MarkdownString,
  StatusBarAlignment,
  ThemeColor,
  commands,
  window,
  type Disposable,
} from "vscode";

import type { Situation } from "./situation";
import { statusText } from "./statusText";

const COLOURS = {
  normal: undefined,
  warning: new ThemeColor("statusBarItem.warningBackground"),
  error: new ThemeColor("statusBarItem.errorBackground"),
};

export class StatusBar implements Disposable {
  private readonly item = window.createStatusBarItem("specengine", StatusBarAlignment.Right, 100);

  constructor() {
    this.item.name = "SpecEngine";
    this.item.command = "specengine.menu";
    this.item.show();
  }

  render(situation: Situation): void {
    const { text, tooltip, severity } = statusText(situation);
    this.item.text = text;
    this.item.tooltip = new MarkdownString(`${tooltip}\n\nClick for the menu.`);
    this.item.accessibilityInformation = { label: `SpecEngine. ${tooltip}` };
    this.item.backgroundColor = COLOURS[severity];
    const isReady = situation.server === "running" && situation.engine?.state === "ready";
    void setContext("isReady", isReady);
    void setContext("isPaused", situation.pausedUntil !== undefined);
    void setContext("hasSuggested", situation.lastMs !== undefined);
  }

  dispose(): void {
    this.item.dispose();
  }
}

/** For conditions in package.json. */
function setContext(name: string, value: boolean): Thenable<unknown> {
  return commands.executeCommand("setContext", `specengine.${name}`, value);
}
