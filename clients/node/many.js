// Several brokers, with plain sockets: node many.js push|ask|work ENDPOINT...
//
//   push  each line of stdin becomes a job, at one broker or another
//   ask   each line of stdin becomes a question; its answer is printed
//   work  print each job of any broker and commit it
//
// docs/many-brokers.md says why each option is set.
const { randomUUID } = require("crypto");
const { createInterface } = require("readline");
const { setTimeout: pause } = require("timers/promises");
const { Push, Reply, Request } = require("zeromq");
const { useKeys } = require("./keys");

const ANSWER_WITHIN = 5000; // milliseconds
const TRIES = 20; // questions until one is given up
const lines = () => createInterface({ input: process.stdin });

const sending = {
  immediate: true, // nothing is queued for a broker that is not connected
  sendHighWaterMark: 10,
  sendTimeout: ANSWER_WITHIN,
  linger: 10000, // don't wait for a dead broker for ever
};
const asking = {
  relaxed: true, // ask again without an answer
  correlate: true, // and take no late answer for that of another question
  receiveTimeout: ANSWER_WITHIN,
  heartbeatInterval: 1000, // a host that has vanished is noticed
  heartbeatTimeout: 3000,
};

const roles = {
  async push(connected) {
    const socket = connected(new Push(sending));
    for await (const text of lines()) await socket.send(text);
    socket.close();
  },
  async ask(connected) {
    const socket = connected(new Request({ ...sending, ...asking }));
    for await (const text of lines()) console.log(await answer(socket, text));
    socket.close();
  },
  async work(connected) {
    const socket = connected(new Reply());
    for await (const [job] of socket) {
      console.log(job.toString());
      await socket.send("done"); // to the broker that sent the job
    }
  },
};

// Ask until a broker answers: the next one each time. With one id the job runs once.
async function answer(socket, text) {
  const headers = JSON.stringify({ id: randomUUID() });
  for (let tries = 0; tries < TRIES; tries++) {
    try {
      await socket.send(["", headers, text]);
      const [result, error] = await socket.receive();
      if (!error) return result.toString();
      if (JSON.parse(error).code !== "UNAVAILABLE") return error.toString();
      await pause(200); // it stops, or has no MongoDB
    } catch (problem) {
      if (problem.code !== "EAGAIN") throw problem; // no broker is connected, or none has answered
    }
  }
  return "no answer";
}

const [role, ...endpoints] = process.argv.slice(2);
roles[role]((socket) => {
  useKeys(socket); // if the doors want CURVE
  for (const endpoint of endpoints) socket.connect(endpoint);
  return socket;
});
