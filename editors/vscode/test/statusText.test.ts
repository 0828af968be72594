import assert from "node:assert/strict";
import test from "node:test";

import type { EngineStatus } from "../src/engineStatus";
import { AT_START, type Situation } from "../src/situation";
import { clockTime, shortModel, statusText } from "../src/statusText";

const READY: EngineStatus = {
  state: "ready",
  model: "small-model",
  drafter: "suffix",
  progress: 1,
  detail: "ready",
};
const RUNNING: Situation = { ...AT_START, server: "running", engine: READY };

test("ready shows the model, then also the last latency", () => {
  assert.equal(statusText(RUNNING).text, "$(zap) small-model");
  assert.equal(statusText({ ...RUNNING, lastMs: 130.6 }).text, "$(zap) small-model 131 ms");
  assert.equal(statusText({ ...RUNNING, lastMs: 2345 }).text, "$(zap) small-model 2.3 s");
});

test("loading shows how far it is", () => {
  const engine: EngineStatus = { ...READY, state: "loading", progress: 0.42 };
  const expected = "$(loading~spin) SpecEngine loads small-model 42 %";
  assert.equal(statusText({ ...RUNNING, engine }).text, expected);
});

test("a failed request is a warning", () => {
  const shown = statusText({ ...RUNNING, hasFailed: true });
  assert.equal(shown.text, "$(warning) small-model");
  assert.equal(shown.severity, "warning");
});

test("a pause shows its end, if it has one", () => {
  const until = new Date(2026, 1, 3, 14, 5).getTime();
  assert.equal(clockTime(until), "14:05");
  assert.match(statusText({ ...RUNNING, pausedUntil: until }).text, /paused until 14:05$/);
  assert.match(statusText({ ...RUNNING, pausedUntil: Infinity }).text, /paused$/);
});

test("a language that is off is named", () => {
  const shown = statusText({ ...RUNNING, language: "markdown", isLanguageOff: true });
  assert.match(shown.text, /off$/);
  assert.match(shown.tooltip, /markdown/);
});

test("trouble is shown whatever the switches say", () => {
  const engine: EngineStatus = { ...READY, state: "failed", detail: "not enough memory" };
  const failed = statusText({ ...RUNNING, engine, pausedUntil: Infinity });
  assert.equal(failed.severity, "error");
  assert.equal(failed.tooltip, "not enough memory");
  const missing = statusText({ ...AT_START, server: "missing", pausedUntil: Infinity });
  assert.equal(missing.severity, "warning");
});

test("a server that runs has an engine that starts until it says otherwise", () => {
  assert.match(statusText({ ...RUNNING, engine: undefined }).text, /starts$/);
});

test("a model that is a path is shown by its last part", () => {
  assert.equal(shortModel("/models/mine/"), "mine");
  assert.equal(shortModel("C:\\models\\mine.gguf"), "mine.gguf");
  assert.equal(shortModel(""), "");
});
