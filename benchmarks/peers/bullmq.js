// BullMQ on Redis with appendfsync always: bulks of 100, 64 jobs at once; finished jobs are removed.
'use strict';
const { Queue, Worker } = require('bullmq');
const { main } = require('./worker.js');

const BULK = 100;
const AT_ONCE = 64;
const connection = { host: '127.0.0.1', port: Number(process.env.PORT), maxRetriesPerRequest: null };
const opts = { removeOnComplete: true, removeOnFail: true };

async function reset() {
  await new Queue('bench', { connection }).obliterate({ force: true });
}

async function push_one(run) {
  const queue = new Queue('bench', { connection });
  await queue.waitUntilReady();
  await run.go();
  for (let number = 0; number < run.jobs; number++) await queue.add('job', await run.payload(number), opts);
}

async function push(run) {
  const queue = new Queue('bench', { connection });
  await queue.waitUntilReady();
  await run.go();
  for (let number = 0; number < run.jobs; ) {
    const bulk = [];
    while (bulk.length < BULK && number < run.jobs) bulk.push({ name: 'job', data: await run.payload(number++), opts });
    await queue.addBulk(bulk);
  }
}

async function work(run) {
  const concurrency = process.env.IDLE ? 1 : AT_ONCE;
  const worker = new Worker('bench', async (job) => run.took(job.data), { connection, concurrency, autorun: false });
  worker.on('error', (error) => console.error(error.message));
  await worker.waitUntilReady();
  await run.go();
  const all = new Promise((resolve) => worker.on('completed', () => ++run.done >= run.jobs && resolve()));
  worker.run();
  await all;
}

main({ reset, push_one, push, work }).catch((error) => {
  console.error(error);
  process.exit(1);
});
