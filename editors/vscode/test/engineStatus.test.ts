import assert from "node:assert/strict";
import test from "node:test";

import { readStatus, readStatusLine } from "../src/engineStatus";

test("a notification is read as it is", () => {
  const sent = {
    state: "loading",
    model: "m",
    drafter: "suffix",
    progress: 0.25,
    detail: "layers",
  };
  assert.deepEqual(readStatus(sent), sent);
});

test("what is no status is not taken for one", () => {
  for (const params of [undefined, null, "ready", {}, { state: "happy" }]) {
    assert.equal(readStatus(params), undefined);
  }
});

test("missing and wild values become harmless ones", () => {
  const expected = { state: "ready", model: "", drafter: "", progress: 1, detail: "" };
  assert.deepEqual(readStatus({ state: "ready", model: 3, progress: 70 }), expected);
});

test("a line of the log tells the same", () => {
  assert.deepEqual(readStatusLine("engine ready: small-model, suffix. 2 threads"), {
    state: "ready",
    model: "small-model",
    drafter: "suffix",
    progress: 1,
    detail: "2 threads",
  });
});

test("a model's path may have dots and blanks", () => {
  const status = readStatusLine("engine loading: /my models/a.b.gguf, none. reads weights");
  assert.equal(status?.model, "/my models/a.b.gguf");
  assert.equal(status.state, "loading");
});

test("other lines tell nothing", () => {
  assert.equal(readStatusLine("the engine has gone; it is started again."), undefined);
});
