import assert from "node:assert/strict";
import test from "node:test";

import { RestartQueue } from "../src/restartQueue";

/** Return a queue whose work ends when `finish` is called, and how often it has begun. */
function controlled(): { queue: RestartQueue; finish: () => Promise<void>; begun: () => number } {
  let begun = 0;
  let end: () => void = () => undefined;
  const queue = new RestartQueue(() => {
    begun++;
    return new Promise((resolve) => {
      end = resolve;
    });
  });
  const finish = async () => {
    end();
    await new Promise(setImmediate);
  };
  return { queue, finish, begun: () => begun };
}

test("requests that come while one runs share one more run", async () => {
  const { queue, finish, begun } = controlled();
  const first = queue.request();
  const others = [queue.request(), queue.request(), queue.request()];
  assert.equal(begun(), 1);
  await finish();
  assert.equal(begun(), 2);
  await finish();
  await Promise.all([first, ...others]);
  assert.equal(begun(), 2);
});

test("a request after the end begins anew", async () => {
  const { queue, finish, begun } = controlled();
  const first = queue.request();
  await finish();
  await first;
  void queue.request();
  assert.equal(begun(), 2);
  await finish();
});
