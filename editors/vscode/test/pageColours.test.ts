import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import { inColours } from "../src/pageColours";

const PAGE = readFileSync("../../specengine/trace/page.html", "utf8");

test("the page of the trace has the colours of the editor", () => {
  assert.match(inColours(PAGE, true), /color-scheme: dark;[^]*@media all {/);
  assert.match(inColours(PAGE, false), /color-scheme: light;[^]*@media not all {/);
  assert.doesNotMatch(inColours(PAGE, true), /prefers-color-scheme/);
});
