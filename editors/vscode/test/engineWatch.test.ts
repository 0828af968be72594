import assert from "node:assert/strict";
import test from "node:test";

import { EngineWatch } from "../src/engineWatch";

/** Return a watch, and the states that it has told. */
function watched(): { watch: EngineWatch; states: string[] } {
  const states: string[] = [];
  const watch = new EngineWatch(({ state, progress }) => states.push(`${state} ${progress}`));
  return { watch, states };
}

test("an old server is understood by its log and its progress", () => {
  const { watch, states } = watched();
  watch.takeLine("engine loading: m, auto. starting");
  watch.takeProgress(0.5, "reading m");
  watch.takeLine("engine ready: m, suffix. m is ready");
  watch.takeProgress(0.9, "late");
  assert.deepEqual(states, ["loading 0", "loading 0.5", "ready 1"]);
});

test("an error that is shown means that there is no engine, until a suggestion comes", () => {
  const { watch, states } = watched();
  watch.takeLine("engine ready: m, suffix. m is ready");
  watch.takeErrorMessage("no suggestions: the engine has gone.");
  watch.takeSuggestion();
  watch.takeSuggestion();
  assert.deepEqual(states, ["ready 1", "unavailable 0", "ready 1"]);
});

test("a model that has failed stays failed", () => {
  const { watch, states } = watched();
  watch.takeLine("engine failed: m, auto. not enough memory");
  watch.takeErrorMessage("the model cannot be loaded: not enough memory");
  assert.deepEqual(states, ["failed 0"]);
});

test("a server that tells its status is believed alone", () => {
  const { watch, states } = watched();
  watch.takeNotification({ state: "unavailable", progress: 0 });
  watch.takeLine("engine ready: m, suffix. m is ready");
  watch.takeNotification({ state: "nonsense" });
  assert.deepEqual(states, ["unavailable 0"]);
});
