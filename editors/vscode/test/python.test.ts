import assert from "node:assert/strict";
import test from "node:test";

import { findPython, whyNone, type Places } from "../src/python";

const NOWHERE: Places = { setting: undefined, interpreter: undefined, own: undefined, path: [] };
const has =
  (...paths: string[]) =>
  (path: string) =>
    Promise.resolve(paths.includes(path) ? "0.1.0" : undefined);

test("the selected interpreter comes before our own environment, that before the path", async () => {
  const places = { ...NOWHERE, interpreter: "/i", own: "/o", path: ["p"] };
  assert.equal((await findPython(places, has("/i", "/o", "p")))?.source, "interpreter");
  assert.equal((await findPython(places, has("/o", "p")))?.source, "own");
  assert.equal((await findPython(places, has("p")))?.source, "path");
});

test("a setting that is wrong is not passed over in silence", async () => {
  const places = { ...NOWHERE, setting: "/wrong", own: "/o" };
  assert.equal(await findPython(places, has("/o")), undefined);
  assert.match(whyNone(places), /\/wrong/);
});

test("nothing is found where nothing is", async () => {
  assert.equal(await findPython(NOWHERE, has("/x")), undefined);
});
