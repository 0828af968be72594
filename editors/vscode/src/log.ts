/** The output channel "SpecEngine", with a memory of its last lines for reports. */

import { window, type Disposable, type LogOutputChannel } from "vscode";

const NUM_REMEMBERED = 300;

export class Log implements Disposable {
  readonly channel: LogOutputChannel = window.createOutputChannel("SpecEngine", { log: true });
  private readonly remembered: string[] = [];

  get lines(): readonly string[] {
    return this.remembered;
  }

  info(line: string): void {
    this.remember(line);
    this.channel.info(line);
  }

  error(line: string): void {
    this.remember(line);
    this.channel.error(line);
  }

  dispose(): void {
    this.channel.dispose();
  }

  private remember(line: string): void {
    const time = new Date().toISOString().slice(11, 23);
    this.remembered.push(...line.split("\n").map((part) => `${time} ${part}`));
    this.remembered.splice(0, this.remembered.length - NUM_REMEMBERED);
  }
}
