/** The commands of package.json. */

import { ConfigurationTarget, commands, window, workspace, type Disposable } from "vscode";

import { servedLanguage } from "./documents";
import { menuItems } from "./menuItems";
import { toggled } from "./pause";
import type { Situation } from "./situation";

export interface CommandParts {
  readonly situation: () => Situation;
  readonly pauseUntil: (time: number) => void;
  readonly resume: () => void;
  readonly restart: () => Promise<void>;
  readonly chooseModel: () => Promise<void>;
  readonly showTrace: () => void;
  readonly openTracePage: () => Promise<void>;
  readonly report: () => Promise<void>;
  readonly install: () => Promise<void>;
}

const SNOOZES = [5, 15, 30, 60, 120];

export function registerCommands(parts: CommandParts): Disposable[] {
  const table: Record<string, () => unknown> = {
    trigger: () => commands.executeCommand("editor.action.inlineSuggest.trigger"),
    pause: () => {
      parts.pauseUntil(Infinity);
    },
    resume: parts.resume,
    snooze: () => snooze(parts),
    toggleLanguage,
    chooseModel: parts.chooseModel,
    restart: parts.restart,
    showTrace: parts.showTrace,
    openTracePage: parts.openTracePage,
    report: parts.report,
    install: parts.install,
    choosePython,
    menu: () => showMenu(parts.situation()),
  };
  return Object.entries(table).map(([name, run]) =>
    commands.registerCommand(`specengine.${name}`, run),
  );
}

async function showMenu(situation: Situation): Promise<void> {
  const item = await window.showQuickPick(menuItems(situation), { title: "SpecEngine" });
  if (item !== undefined) await commands.executeCommand(item.command);
}

async function snooze(parts: CommandParts): Promise<void> {
  const items = SNOOZES.map((minutes) => ({
    label: minutes < 60 ? `${minutes} minutes` : `${minutes / 60} h`,
    minutes,
  }));
  const item = await window.showQuickPick(items, { title: "SpecEngine: Snooze" });
  if (item !== undefined) parts.pauseUntil(Date.now() + item.minutes * 60_000);
}

async function toggleLanguage(): Promise<void> {
  const language = servedLanguage(window.activeTextEditor?.document);
  if (language === undefined) return;
  const settings = workspace.getConfiguration("specengine");
  const languages = settings.get<string[]>("disabledLanguages", []);
  await settings.update(
    "disabledLanguages",
    toggled(languages, language),
    ConfigurationTarget.Global,
  );
}

async function choosePython(): Promise<void> {
  const picked = await window.showOpenDialog({
    title: "SpecEngine: a Python that has the package",
    openLabel: "Use This Python",
  });
  const path = picked?.[0]?.fsPath;
  if (path === undefined) return;
  await workspace.getConfiguration("specengine").update("python", path, ConfigurationTarget.Global);
}
