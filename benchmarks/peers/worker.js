// The same as worker.py for peers in Node.
'use strict';
const SIZE = 200;
const now = () => process.hrtime.bigint();

class Run {
  constructor(jobs, rate) {
    this.jobs = jobs;
    this.rate = rate;
    this.done = 0;
    this.began = 0n;
    this.times = [];
  }
  go() {
    return new Promise((resolve) => {
      process.stdin.once('data', async (line) => {
        process.stdin.pause();
        this.began = BigInt(String(line).trim());
        await sleepUntil(this.began);
        resolve();
      });
      console.log('ready');
    });
  }
  async payload(number) {
    let due = now();
    if (this.rate) {
      due = this.began + BigInt(Math.round((number / this.rate) * 1e9));
      await sleepUntil(due);
    }
    return (String(due).padStart(20, '0') + ' ').padEnd(SIZE, 'x');
  }
  took(payload) {
    this.times.push(Number(now() - BigInt(payload.slice(0, 20).replace(/^0+/, ''))) / 1e6);
  }
  report() {
    console.log(JSON.stringify({ ended: Number(now()), done: this.done || this.jobs, times: this.times }));
  }
}

async function sleepUntil(due) {
  const left = Number(due - now()) / 1e6;
  if (left > 0) await new Promise((resolve) => setTimeout(resolve, left));
}

async function main(roles) {
  const [role, ...rest] = process.argv.slice(2);
  const option = (name) => (rest.includes(name) ? parseFloat(rest[rest.indexOf(name) + 1]) : 0);
  const run = new Run(option('--jobs') || 1, option('--rate'));
  await roles[role](run);
  if (role !== 'reset') run.report();
  setTimeout(() => process.exit(0), 50);
}

module.exports = { main };
