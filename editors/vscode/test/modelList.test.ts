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

test("something else is an empty list", () => {
  assert.deepEqual(readModelList("specengine: error\n"), []);
  assert.deepEqual(readModelList(""), []);
});
