import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import { serverKeys, serverSettings } from "../src/serverSettings";

test("settings of a group are the server's, the others the extension's", () => {
  const keys = serverKeys(["specengine.python", "specengine.engine.model"]);
  assert.deepEqual(keys, ["engine.model"]);
});

test("values are nested by group; unset ones are left out", () => {
  const values = new Map<string, unknown>([
    ["engine.model", "m"],
    ["trace.enabled", false],
  ]);
  const settings = serverSettings(["engine.model", "engine.drafter", "trace.enabled"], (key) =>
    values.get(key),
  );
  assert.deepEqual(settings, { engine: { model: "m" }, trace: { enabled: false } });
});

test("what could run or read something is not taken from folders without trust", () => {
  const { capabilities } = JSON.parse(readFileSync("package.json", "utf8")) as {
    capabilities: { untrustedWorkspaces: { restrictedConfigurations: string[] } };
  };
  const restricted = capabilities.untrustedWorkspaces.restrictedConfigurations;
  for (const name of [
    "python",
    "pipArguments",
    "engine.model",
    "engine.arguments",
    "engine.socket",
    "trace.path",
    "completion.ignoredFiles",
  ]) {
    assert.ok(restricted.includes(`specengine.${name}`), name);
  }
});
