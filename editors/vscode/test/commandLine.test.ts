import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import test from "node:test";

import { run } from "../src/childProcess";
import {
  baseProbe,
  installation,
  languageServer,
  modelLists,
  tracePage,
  versionProbe,
} from "../src/commandLine";

test("no module comes from the working directory", () => {
  const own = [versionProbe("py"), languageServer("py"), ...modelLists("py")];
  for (const line of [...own, tracePage("py", undefined, "/page.html")]) {
    assert.equal(line.args[0], "-P");
  }
  const [venv, ...inside] = installation("py", "/own", "/x.whl", []);
  for (const line of [baseProbe("py"), venv]) assert.equal(line?.args[0], "-I");
  for (const line of inside) assert.equal(line.args[0], "-P");
});

test("an installation makes the environment, then works inside it", () => {
  const [venv, pip, pull] = installation("python3", "/own", "/x.whl", ["--index-url", "u"]);
  assert.deepEqual(venv, { command: "python3", args: ["-I", "-m", "venv", "--clear", "/own"] });
  assert.match(pip?.command ?? "", /own/);
  assert.deepEqual(pip?.args.slice(-3), ["--index-url", "u", "/x.whl"]);
  assert.deepEqual(pull?.args.slice(-2), ["models", "pull"]);
});

test("a probe of the Python here succeeds, and one of nothing fails", async () => {
  await run(baseProbe("python3"), { timeoutMs: 10_000 });
  await assert.rejects(run(versionProbe("/no/such/python")), /ENOENT/);
});

test("a failing command says its last line and its code", async () => {
  const line = {
    command: "python3",
    args: ["-c", "import sys; print('no', file=sys.stderr); sys.exit(3)"],
  };
  await assert.rejects(run(line), /code 3\. no$/);
});

test("output comes back, and line by line", async () => {
  const folder = mkdtempSync(join(tmpdir(), "specengine-"));
  const script = join(folder, "two.py");
  writeFileSync(script, "print('one')\nprint('two')\n");
  const lines: string[] = [];
  const output = await run(
    { command: "python3", args: [script] },
    { onLine: (text) => lines.push(text) },
  );
  rmSync(folder, { recursive: true });
  assert.equal(output, "one\ntwo");
  assert.deepEqual(lines, ["one", "two"]);
});

test("a command can be stopped", async () => {
  const abort = new AbortController();
  const running = run({ command: "python3", args: ["-c", "input()"] }, { signal: abort.signal });
  abort.abort();
  await assert.rejects(running, /abort/i);
});
