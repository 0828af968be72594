/** Words, icon and colour of the status bar item for a situation. */

import type { EngineStatus } from "./engineStatus";
import type { Situation } from "./situation";

export interface StatusText {
  readonly text: string;
  readonly tooltip: string;
  readonly severity: "normal" | "warning" | "error";
}

/** Return what to show; trouble comes before switches, switches before the engine. */
export function statusText(situation: Situation): StatusText {
  return (
    ofServer(situation) ?? ofFailedEngine(situation) ?? ofSwitches(situation) ?? ofEngine(situation)
  );
}

/** Return a model as people call it: the last part of a path. */
export function shortModel(model: string): string {
  return model.split(/[/\\]/).findLast((part) => part !== "") ?? model;
}

/** Return a time of day. */
export function clockTime(time: number): string {
  const date = new Date(time);
  const twoDigits = (value: number) => String(value).padStart(2, "0");
  return `${twoDigits(date.getHours())}:${twoDigits(date.getMinutes())}`;
}

function ofServer({ server, reason }: Situation): StatusText | undefined {
  switch (server) {
    case "missing":
      return {
        text: "$(warning) SpecEngine: no Python",
        tooltip: reason || "No Python with the package specengine was found.",
        severity: "warning",
      };
    case "installing":
      return normal(
        "$(sync~spin) SpecEngine is being installed",
        "See the output for what pip does.",
      );
    case "failed":
      return error(reason || "The language server cannot be started.");
    case "starting":
      return normal("$(loading~spin) SpecEngine starts", reason || "The language server starts.");
    case "running":
      return undefined;
  }
}

function ofFailedEngine({ engine }: Situation): StatusText | undefined {
  return engine?.state === "failed" ? error(engine.detail) : undefined;
}

function ofSwitches(situation: Situation): StatusText | undefined {
  const { pausedUntil, isLanguageOff, language } = situation;
  if (pausedUntil !== undefined) {
    const end = Number.isFinite(pausedUntil) ? ` until ${clockTime(pausedUntil)}` : "";
    return normal(`$(debug-pause) SpecEngine paused${end}`, "Nothing is suggested by itself.");
  }
  if (isLanguageOff) {
    return normal(
      `$(circle-slash) SpecEngine off`,
      `It is off for ${language ?? "this language"}.`,
    );
  }
  return undefined;
}

function ofEngine({ engine, lastMs, hasFailed }: Situation): StatusText {
  if (engine === undefined || engine.state === "starting") {
    return normal("$(loading~spin) SpecEngine starts", "The engine starts.");
  }
  const name = shortModel(engine.model);
  switch (engine.state) {
    case "loading": {
      const percent = engine.progress > 0 ? ` ${Math.round(engine.progress * 100)} %` : "";
      const tooltip = `${about(engine)}\n\n${engine.detail}`.trimEnd();
      return normal(`$(loading~spin) SpecEngine loads ${name}${percent}`, tooltip);
    }
    case "unavailable":
      return {
        text: "$(loading~spin) SpecEngine: no engine",
        tooltip: engine.detail,
        severity: "warning",
      };
    default:
      return hasFailed ? failing(name) : ready(name, lastMs, about(engine));
  }
}

function failing(name: string): StatusText {
  const tooltip = "The last request failed. The log of the engine says why.";
  return { text: `$(warning) ${name}`, tooltip, severity: "warning" };
}

function ready(name: string, lastMs: number | undefined, more: string): StatusText {
  if (lastMs === undefined) return normal(`$(zap) ${name}`, `SpecEngine is ready.\n\n${more}`);
  const latency = duration(lastMs);
  const last = `Last key to ghost text: ${latency}.`;
  return normal(`$(zap) ${name} ${latency}`, `SpecEngine is ready.\n\n${last}\n\n${more}`);
}

function duration(ms: number): string {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

function about({ model, drafter }: EngineStatus): string {
  const drafted = drafter === "" ? "" : `, drafter \`${drafter}\``;
  return `Model \`${model}\`${drafted}.`;
}

function normal(text: string, tooltip: string): StatusText {
  return { text, tooltip, severity: "normal" };
}

function error(tooltip: string): StatusText {
  return { text: "$(error) SpecEngine", tooltip, severity: "error" };
}
