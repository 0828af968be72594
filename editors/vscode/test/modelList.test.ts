import assert from "node:assert/strict";
import test from "node:test";

import { readModelList } from "../src/modelList";

const TABLE = `model                   runs      memory      here      fills in  draft model             licence
small-model *     yes       0.4 GB      273 MB    -         -                       Apache-2.0
smollm2-360m            yes       0.9 GB      -         -         smollm2-135m            Apache-2.0
starcoder2-3b           upstream  6.2 GB      -         yes       -                       LicenseRef-BigCode-OpenRAIL-M

* default. runs: upstream means not in this engine yet, only behind another server.
`;

test("the models that run here are listed, with what decides between them", () => {
  assert.deepEqual(readModelList(TABLE), [
    {
      name: "small-model",
      isDefault: true,
      memory: "0.4 GB",
      isHere: true,
      licence: "Apache-2.0",
    },
    {
      name: "smollm2-360m",
      isDefault: false,
      memory: "0.9 GB",
      isHere: false,
      licence: "Apache-2.0",
    },
  ]);
});

test("what is printed for programs says the same", () => {
  const shared = { reads_suffix: true, reads_files: false, draft: null };
  const printed = JSON.stringify([
    {
      ...shared,
      name: "small-model",
      is_default: true,
      runs: true,
      memory_gb: 0.4,
      size_bytes: 273e6,
      licence: "Apache-2.0",
    },
    {
      ...shared,
      name: "smollm2-360m",
      is_default: false,
      runs: true,
      memory_gb: 0.9,
      size_bytes: null,
      licence: "Apache-2.0",
    },
    {
      ...shared,
      name: "starcoder2-3b",
      is_default: false,
      runs: false,
      memory_gb: null,
      size_bytes: null,
      licence: null,
    },
  ]);
  assert.deepEqual(readModelList(printed), readModelList(TABLE));
});

test("something else is an empty list", () => {
  assert.deepEqual(readModelList("specengine: error\n"), []);
  assert.deepEqual(readModelList(""), []);
});
