/** Runs one piece of work at a time; whoever asks while it runs gets one more run, shared. */

export class RestartQueue {
  private running: Promise<void> | undefined;
  private isWantedAgain = false;

  /** `work` answers for its own errors. */
  constructor(private readonly work: () => Promise<void>) {}

  /** Return a promise that is done when a run that began after this call has ended. */
  request(): Promise<void> {
    if (this.running === undefined) {
      this.running = this.runAll().finally(() => {
        this.running = undefined;
      });
    } else {
      this.isWantedAgain = true;
    }
    return this.running;
  }

  private async runAll(): Promise<void> {
    do {
      this.isWantedAgain = false;
      await this.work();
    } while (this.wantsMore());
  }

  private wantsMore(): boolean {
    return this.isWantedAgain;
  }
}
