/** Finds a Python that has the package; what it runs and where it looks is given to it. */

export type Source = "setting" | "interpreter" | "own" | "path";

export interface Candidate {
  readonly path: string;
  readonly source: Source;
}

export interface Python extends Candidate {
  /** Of the package. */
  readonly version: string;
}

/** Where to look; undefined where there is nothing. */
export interface Places {
  /** What the user has set. If it is wrong, nothing else is taken in its place. */
  readonly setting: string | undefined;
  readonly interpreter: string | undefined;
  /** The environment that this extension has made. */
  readonly own: string | undefined;
  readonly path: readonly string[];
}

/** Return the version of the package that a Python has, or undefined. */
export type Probe = (path: string) => Promise<string | undefined>;

/** Return the candidates, the first choice first. */
export function candidates(places: Places): Candidate[] {
  if (places.setting !== undefined) return [{ path: places.setting, source: "setting" }];
  const found: Candidate[] = [];
  if (places.interpreter !== undefined) {
    found.push({ path: places.interpreter, source: "interpreter" });
  }
  if (places.own !== undefined) found.push({ path: places.own, source: "own" });
  return [...found, ...places.path.map((path): Candidate => ({ path, source: "path" }))];
}

/** Return the first candidate that has the package. */
export async function findPython(places: Places, probe: Probe): Promise<Python | undefined> {
  for (const candidate of candidates(places)) {
    const version = await probe(candidate.path);
    if (version !== undefined) return { ...candidate, version };
  }
  return undefined;
}

/** Return one line that says why none was found. */
export function whyNone({ setting }: Places): string {
  return setting === undefined
    ? "No Python with the package specengine was found."
    : `The Python of the setting specengine.python, ${setting}, does not have the package specengine.`;
}
