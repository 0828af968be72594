/** The object that the server is given; its settings are those of a group, as in `engine.model`. */

const SECTION = "specengine";

/** Return the names of the server's settings, without the section, from those that are declared. */
export function serverKeys(declared: Iterable<string>): string[] {
  const names = [...declared].map((key) => key.slice(SECTION.length + 1));
  return names.filter((name) => name.includes("."));
}

/** Return the nested object of these settings; what has no value is left out. */
export function serverSettings(
  keys: readonly string[],
  get: (key: string) => unknown,
): Record<string, Record<string, unknown>> {
  const settings: Record<string, Record<string, unknown>> = {};
  for (const key of keys) {
    const [group = "", name = ""] = key.split(".");
    const value = get(key);
    if (value !== undefined) (settings[group] ??= {})[name] = value;
  }
  return settings;
}
