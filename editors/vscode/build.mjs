// Bundles the extension into dist/, with the notices of what is in the bundle and a README without
// pictures, which lie outside of the package; with --tests, bundles the unit tests into build/
// instead.

import { copyFileSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

import { notices } from "./notices.mjs";

const common = {
  bundle: true,
  platform: "node",
  target: "node20",
  format: "cjs",
  logLevel: "warning",
};

if (process.argv.includes("--tests")) {
  const tests = readdirSync("test").filter((name) => name.endsWith(".test.ts"));
  await build({
    ...common,
    entryPoints: tests.map((name) => `test/${name}`),
    outdir: "build/test",
  });
} else {
  const result = await build({
    ...common,
    entryPoints: ["src/extension.ts"],
    outfile: "dist/extension.js",
    external: ["vscode"],
    minify: true,
    metafile: true,
  });
  writeFileSync("ThirdPartyNotices.txt", notices(Object.keys(result.metafile.inputs)));
  copyFileSync("../../LICENSE", "LICENSE");
  const readme = readFileSync("README.md", "utf8");
  writeFileSync("dist/README.md", readme.replace(/<picture>[^]*?<\/picture>\n\n/, ""));
}
