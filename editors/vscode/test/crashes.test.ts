import assert from "node:assert/strict";
import test from "node:test";

import { Crashes } from "../src/crashes";

test("pauses grow, and end after too many crashes", () => {
  const crashes = new Crashes();
  const pauses = [0, 1, 2, 3, 4].map((second) => crashes.pauseMs(second * 1000));
  assert.deepEqual(pauses, [500, 1000, 2000, 4000, undefined]);
});

test("old crashes do not count", () => {
  const crashes = new Crashes();
  for (const minute of [0, 1, 2, 3, 4, 5, 6, 7]) {
    assert.notEqual(crashes.pauseMs(minute * 60_000), undefined);
  }
});

test("a start that the user asks for counts from nothing", () => {
  const crashes = new Crashes();
  for (let i = 0; i < 10; i++) crashes.pauseMs(0);
  crashes.forget();
  assert.equal(crashes.pauseMs(0), 500);
});
