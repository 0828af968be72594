// Licences of the packages that a bundle was made of.

import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";

/** Return the text of the notices; a package without a licence text stops the build. */
export function notices(bundledFiles) {
  const folders = new Set(bundledFiles.map(packageFolder).filter((folder) => folder !== undefined));
  const parts = [...folders].sort().map(notice);
  return ["The extension's bundle contains these packages.", ...parts].join(
    `\n\n${"-".repeat(80)}\n\n`,
  );
}

/** Return the folder of the package that a file belongs to; undefined for our own. */
function packageFolder(file) {
  return /^.*node_modules\/(?:@[^/]+\/)?[^/]+/.exec(file)?.[0];
}

function notice(folder) {
  const { name, version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const file = readdirSync(folder).find((each) => /^licen[cs]e/i.test(each));
  if (file === undefined) throw new Error(`${name} has no licence text`);
  return `${name} ${version} (${license})\n\n${readFileSync(join(folder, file), "utf8").trim()}`;
}
