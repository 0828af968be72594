/** What a click on the status bar item offers in a situation. */

import type { Situation } from "./situation";

export interface MenuItem {
  readonly label: string;
  readonly description?: string;
  readonly command: string;
}

/** Return the entries, the likeliest first. */
export function menuItems(situation: Situation): MenuItem[] {
  return [...repairs(situation), ...switches(situation), ...rest(situation)];
}

function repairs({ server }: Situation): MenuItem[] {
  if (server !== "missing" && server !== "failed") return [];
  return [
    { label: "$(cloud-download) Install SpecEngine…", command: "specengine.install" },
    { label: "$(folder-opened) Choose Python…", command: "specengine.choosePython" },
  ];
}

function switches({ pausedUntil, language, isLanguageOff }: Situation): MenuItem[] {
  const items: MenuItem[] =
    pausedUntil === undefined
      ? [
          { label: "$(debug-pause) Pause", command: "specengine.pause" },
          { label: "$(clock) Snooze…", command: "specengine.snooze" },
        ]
      : [{ label: "$(play) Resume", command: "specengine.resume" }];
  if (language === undefined) return items;
  const verb = isLanguageOff ? "Turn on" : "Turn off";
  return [
    ...items,
    { label: `$(circle-slash) ${verb} for ${language}`, command: "specengine.toggleLanguage" },
  ];
}

function rest({ engine }: Situation): MenuItem[] {
  const model = engine === undefined ? {} : { description: engine.model };
  return [
    { label: "$(symbol-misc) Choose model…", ...model, command: "specengine.chooseModel" },
    { label: "$(refresh) Restart", command: "specengine.restart" },
    { label: "$(pulse) Show latency trace", command: "specengine.showTrace" },
    { label: "$(graph) Open trace page", command: "specengine.openTracePage" },
    { label: "$(report) Report a problem", command: "specengine.report" },
  ];
}
