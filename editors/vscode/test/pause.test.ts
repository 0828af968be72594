import assert from "node:assert/strict";
import test from "node:test";

import { Pause, toggled } from "../src/pause";

test("a pause without an end lasts until it is ended", () => {
  const pause = new Pause();
  pause.begin();
  assert.equal(pause.endsAt(1e15), Infinity);
  pause.end();
  assert.equal(pause.endsAt(0), undefined);
});

test("a snooze ends by itself", () => {
  const pause = new Pause();
  pause.begin(1000);
  assert.equal(pause.endsAt(999), 1000);
  assert.equal(pause.endsAt(1000), undefined);
});

test("a language is added, and taken out again", () => {
  const off = toggled(["markdown"], "python");
  assert.deepEqual(off, ["markdown", "python"]);
  assert.deepEqual(toggled(off, "python"), ["markdown"]);
});
