/** The text of a report: what somebody needs who has to find out what went wrong. */

export interface Report {
  /** Names and values, such as versions. */
  readonly facts: readonly (readonly [string, string])[];
  /** Settings that differ from their defaults. */
  readonly settings: Readonly<Record<string, unknown>>;
  readonly lines: readonly string[];
}

/** Return Markdown; it is not redacted yet. */
export function reportText({ facts, settings, lines }: Report): string {
  return [
    "# SpecEngine report",
    "",
    "Folders, names of files, and keys have been taken out; the log holds no source text. Please read it before you send it.",
    "",
    "## What happened",
    "",
    "(Describe it here.)",
    "",
    "## Versions",
    "",
    ...facts.map(([name, value]) => `- ${name}: ${value}`),
    "",
    "## Settings that were changed",
    "",
    "```json",
    JSON.stringify(settings, null, 2),
    "```",
    "",
    "## Last lines of the log",
    "",
    "```",
    ...lines,
    "```",
    "",
  ].join("\n");
}
