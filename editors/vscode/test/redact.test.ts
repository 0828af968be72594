import assert from "node:assert/strict";
import test from "node:test";

import { redact } from "../src/redact";

const KNOWN = { home: "/home/ada", user: "ada", folders: ["/home/ada/secret-project"] };

const cases: [string, string, string][] = [
  [
    "files of the folder keep their ending only",
    "opens /home/ada/secret-project/src/plan.py: no",
    "opens <folder>/<file>.py: no",
  ],
  ["a URI is one too", "file:///home/ada/secret-project/a%20b.rs", "file://<folder>/<file>.rs"],
  ["the home folder is a tilde", "log: /home/ada/.local/state/x.log", "log: ~/.local/state/x.log"],
  ["other folders are gone too", "/mnt/ada/models/m.gguf: no", "<path>/m.gguf: no"],
  ["on Windows as well", String.raw`"C:\\Users\\Bo\\python.exe"`, '"<path>/python.exe"'],
  ["the user is nobody elsewhere", "ada's adage", "<user>'s adage"],
  ["keys have no value", 'token=abc123 "api_key": "xyz"', 'token=<secret> "api_key": "<secret>"'],
  ["addresses have no password", "https://me:pw@host/x", "https://<secret>@host/x"],
  ["an address of mail is gone", "by ada.l@example.org.", "by <email>."],
  ["long keys are gone", "hf_a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6", "<key>"],
  [
    "words stay",
    "#8 v9 python automatic: shown (stopped) 106 ms",
    "#8 v9 python automatic: shown (stopped) 106 ms",
  ],
];

for (const [fact, given, expected] of cases) {
  test(fact, () => {
    assert.equal(redact(given, KNOWN), expected);
  });
}

test("an inner folder is found before an outer one", () => {
  const known = { ...KNOWN, folders: ["/w", "/w/inner"] };
  assert.equal(redact("/w/inner /w/other.c", known), "<folder> <folder>/<file>.c");
});

test("nothing known changes nothing", () => {
  const nothing = { home: "/", user: "", folders: [] };
  const line = "python3 ended; accepted 3/7, reused 264/266 of and/or";
  assert.equal(redact(line, nothing), line);
});
