/** When the last key was typed into each document. */

import { workspace, type Disposable, type TextDocument } from "vscode";

/** An older key is not what a request comes from. */
const MAX_AGE_MS = 1000;

export class KeyTimes implements Disposable {
  private readonly times = new WeakMap<TextDocument, number>();
  private readonly listener = workspace.onDidChangeTextDocument(({ document, contentChanges }) => {
    if (contentChanges.length > 0) this.times.set(document, performance.now());
  });

  /** Return when the key came that a request of now follows; now, if it follows none. */
  before(document: TextDocument): number {
    const now = performance.now();
    const last = this.times.get(document) ?? 0;
    return now - last < MAX_AGE_MS ? last : now;
  }

  dispose(): void {
    this.listener.dispose();
  }
}
