import assert from "node:assert/strict";
import test from "node:test";

import { LatencyTrace, readTraceLine } from "../src/latencyTrace";

const SHOWN =
  "#8 v9 python automatic statement: shown (stopped) 106 ms [prefill 59, verify 87] 4 tokens in 3 steps, accepted 0/7, reused 264/266";
const EMPTY = "#9 v10 python automatic: empty (inside_word) 0 ms";

/** Return a trace, and the lines that it has written. */
function traced(): { take: (line: string) => void; trace: LatencyTrace; lines: string[] } {
  const lines: string[] = [];
  const trace = new LatencyTrace((line) => lines.push(line));
  const take = (line: string) => {
    const read = readTraceLine(line);
    assert.ok(read);
    trace.take(line, read);
  };
  return { take, trace, lines };
}

test("a line is read with and without a reason", () => {
  assert.deepEqual(readTraceLine(SHOWN), { version: 9, outcome: "shown", totalMs: 106 });
  const cached = readTraceLine("#10 v11 python automatic: cached 1 ms");
  assert.deepEqual(cached, { version: 11, outcome: "cached", totalMs: 1 });
});

test("a line about something else is none", () => {
  assert.equal(readTraceLine("engine ready: m, suffix. ready"), undefined);
});

test("the editor's time joins a line that came before it", () => {
  const { take, trace, lines } = traced();
  take(SHOWN);
  assert.deepEqual(lines, []);
  trace.answered(9, 131.4);
  assert.deepEqual(lines, [`${SHOWN}; key to ghost text 131 ms`]);
});

test("the editor's time joins a line that comes after it", () => {
  const { take, trace, lines } = traced();
  trace.answered(9, 131.4);
  take(SHOWN);
  assert.deepEqual(lines, [`${SHOWN}; key to ghost text 131 ms`]);
});

test("a line whose answer was thrown away comes with the next one", () => {
  const { take, lines } = traced();
  take(SHOWN);
  take(EMPTY);
  assert.deepEqual(lines, [SHOWN, EMPTY]);
});

test("answers that no line tells of are forgotten", () => {
  const { take, trace, lines } = traced();
  for (let version = 9; version < 30; version++) trace.answered(version, 5);
  take(SHOWN);
  take(EMPTY);
  assert.deepEqual(lines, [SHOWN, EMPTY]);
});
