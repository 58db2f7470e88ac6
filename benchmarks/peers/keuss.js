// keuss on MongoDB, its default backend `mongo`: one operation a job, reserve and commit; 64 pushes and 16 workers at once.
'use strict';
const { MongoClient, Db } = require('mongodb');
const { main } = require('./worker.js');

// The signaller of keuss 2.0.6 knows "collection already exists" by its old text only; this rewrites the new one.
const createCollection = Db.prototype.createCollection;
Db.prototype.createCollection = function (name, options, callback) {
  if (typeof callback !== 'function') return createCollection.apply(this, arguments);
  const told = (error, made) => callback(error && error.code === 48 ? new Error('collection already exists') : error, made);
  return createCollection.call(this, name, options, told);
};

const PUSHES = 64;
const WORKERS = 16;
const POLL = 1000; // ms; of its own 60,000 a single lost signal would make the p99
const SETTLING = 300; // ms until its capped collection of signals is tailed
const url = (database) => process.env.MONGO_URL.replace('/?', `/${database}?`);
const called = (start) => new Promise((resolve, reject) => start((error, value) => (error ? reject(error) : resolve(value))));

async function open() {
  const signaller = { provider: require('keuss/signal/mongo-capped'), opts: { url: url('bench_keuss_signal') } };
  const options = { url: url('bench_keuss'), name: 'bench', signaller, pollInterval: POLL };
  const factory = await called((done) => require('keuss/backends/mongo')(options, done));
  const queue = await called((done) => factory.queue('bench', {}, done));
  await new Promise((resolve) => setTimeout(resolve, SETTLING));
  return queue;
}

async function reset() {
  const client = await MongoClient.connect(process.env.MONGO_URL);
  for (const database of ['bench_keuss', 'bench_keuss_signal', 'bench_keuss_stats', 'bench_keuss_status']) await client.db(database).dropDatabase();
  await client.close();
}

async function produce(run, at_once) {
  const queue = await open();
  await run.go();
  let next = 0;
  const loop = async () => {
    while (next < run.jobs) {
      const payload = await run.payload(next++);
      await called((done) => queue.push(payload, {}, done));
    }
  };
  await Promise.all(Array.from({ length: at_once }, loop));
}

async function work(run) {
  const queue = await open();
  await run.go();
  let taken = 0;
  const loop = async (_, number) => {
    while (taken < run.jobs) {
      taken++;
      const job = await called((done) => queue.pop(`worker ${number}`, { reserve: true }, done));
      run.took(job.payload);
      await called((done) => queue.ok(job, done));
      run.done++;
    }
  };
  await Promise.all(Array.from({ length: process.env.IDLE ? 1 : WORKERS }, loop));
}

main({ reset, push_one: (run) => produce(run, 1), push: (run) => produce(run, PUSHES), work }).catch((error) => {
  console.error(error);
  process.exit(1);
});
