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

  private readonly context = new Map<string, boolean>();

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
    this.setContext("isReady", isReady);
    this.setContext("isPaused", situation.pausedUntil !== undefined);
    this.setContext("hasSuggested", situation.lastMs !== undefined);
  }

  dispose(): void {
    this.item.dispose();
  }

  /** Set what conditions in package.json ask for. */
  private setContext(name: string, value: boolean): void {
    if (this.context.get(name) === value) return;
    this.context.set(name, value);
    void commands.executeCommand("setContext", `specengine.${name}`, value);
  }
}
