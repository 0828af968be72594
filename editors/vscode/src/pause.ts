/** Whether suggestions come by themselves now, and until when not. It knows no timers. */

export class Pause {
  private until = 0;

  /** Stop until a time in milliseconds since the epoch; without one, until `end`. */
  begin(until = Infinity): void {
    this.until = until;
  }

  end(): void {
    this.until = 0;
  }

  /** Return when it ends, or undefined when it is not on. */
  endsAt(now: number): number | undefined {
    return now < this.until ? this.until : undefined;
  }
}

/** Return a list of languages with one more, or one less. */
export function toggled(languages: readonly string[], language: string): string[] {
  const others = languages.filter((each) => each !== language);
  return others.length < languages.length ? others : [...languages, language];
}
