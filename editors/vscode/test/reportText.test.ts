import assert from "node:assert/strict";
import test from "node:test";

import { reportText } from "../src/reportText";

test("a report has versions, changed settings and the log", () => {
  const text = reportText({
    facts: [["system", "linux x64"]],
    settings: { "specengine.engine.model": "m" },
    lines: ["12:00:00.000 engine ready: m, suffix. ready"],
  });
  assert.match(text, /- system: linux x64/);
  assert.match(text, /"specengine.engine.model": "m"/);
  assert.match(text, /engine ready: m/);
});
