/** Where and when suggestions come by themselves: pause, snooze, and languages that are off. */

import { window, workspace, type Disposable } from "vscode";

import { servedLanguage } from "./documents";
import { Pause } from "./pause";
import type { Board } from "./situation";

export class Switches implements Disposable {
  private readonly pause = new Pause();
  private readonly listeners: Disposable[];
  private timer: NodeJS.Timeout | undefined;

  constructor(private readonly board: Board) {
    this.listeners = [
      window.onDidChangeActiveTextEditor(this.tell),
      workspace.onDidOpenTextDocument(this.tell), // also when a document's language is changed
      workspace.onDidChangeConfiguration(this.tell),
    ];
    this.tell();
  }

  /** Return whether a language gets suggestions by themselves now. */
  isOn(language: string): boolean {
    return this.pause.endsAt(Date.now()) === undefined && !isOff(language);
  }

  /** Pause until a time; without one, until `resume`. */
  pauseUntil(time = Infinity): void {
    this.pause.begin(time);
    clearTimeout(this.timer);
    if (Number.isFinite(time)) this.timer = setTimeout(this.tell, time - Date.now() + 1);
    this.tell();
  }

  resume(): void {
    this.pause.end();
    this.tell();
  }

  dispose(): void {
    clearTimeout(this.timer);
    for (const listener of this.listeners) listener.dispose();
  }

  private readonly tell = (): void => {
    const language = servedLanguage(window.activeTextEditor?.document);
    this.board.update({
      pausedUntil: this.pause.endsAt(Date.now()),
      language,
      isLanguageOff: language !== undefined && isOff(language),
    });
  };
}

function isOff(language: string): boolean {
  const settings = workspace.getConfiguration("specengine");
  return settings.get<string[]>("disabledLanguages", []).includes(language);
}
