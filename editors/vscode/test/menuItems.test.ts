import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import { menuItems } from "../src/menuItems";
import { AT_START, type Situation } from "../src/situation";

const RUNNING: Situation = { ...AT_START, server: "running", language: "python" };

const commandsOf = (situation: Situation) => menuItems(situation).map((item) => item.command);

test("what is paused can be resumed, and the other way round", () => {
  assert.ok(commandsOf(RUNNING).includes("specengine.pause"));
  const paused = commandsOf({ ...RUNNING, pausedUntil: Infinity });
  assert.ok(paused.includes("specengine.resume"));
  assert.ok(!paused.includes("specengine.pause"));
});

test("without a Python, installing comes first", () => {
  assert.equal(commandsOf({ ...RUNNING, server: "missing" })[0], "specengine.install");
});

test("every entry is a command of package.json", () => {
  const { contributes } = JSON.parse(readFileSync("package.json", "utf8")) as {
    contributes: { commands: { command: string }[] };
  };
  const known = contributes.commands.map(({ command }) => command);
  const all = [RUNNING, { ...RUNNING, server: "failed", pausedUntil: 5 } as const].flatMap(
    commandsOf,
  );
  assert.deepEqual(
    all.filter((command) => !known.includes(command)),
    [],
  );
});
