// Plain ZeroMQ programs as any textbook has them; each knows only an endpoint. See plain.c.
const zmq = require("zeromq");

// Made when it is needed: who reads stdin does not end.
let input;
const lines = () => (input ??= require("readline").createInterface({ input: process.stdin })[Symbol.asyncIterator]());

const programs = {
  async ask(endpoint, ...texts) {
    const socket = new zmq.Request();
    socket.connect(endpoint);
    for (const text of texts) {
      await socket.send(text);
      console.log((await socket.receive()).toString());
    }
    socket.close();
  },
  async answer(endpoint, told) {
    const socket = new zmq.Reply();
    socket.connect(endpoint);
    for await (const [text] of socket) {
      if (told) await untilTold(text);
      await socket.send("Node:" + text);
    }
  },
  async work(endpoint, commit) {
    const socket = new zmq.Pull();
    const done = new zmq.Push();
    socket.connect(endpoint);
    done.connect(commit);
    for await (const [receipt, text] of socket) {
      await untilTold(text);
      await done.send(["COMMIT", receipt]);
    }
  },
  async push(endpoint, ...texts) {
    const socket = new zmq.Push();
    socket.connect(endpoint);
    for (const text of texts) await socket.send(text);
    socket.close();
  },
  async pull(endpoint) {
    const socket = new zmq.Pull();
    socket.connect(endpoint);
    for await (const [text] of socket) console.log(text.toString());
  },
  async take(endpoint, hwm, count) {
    const socket = new zmq.Pull({ receiveHighWaterMark: Number(hwm) });
    socket.connect(endpoint);
    for (let number = 0; number < Number(count); number++) console.log("got " + (await socket.receive()));
    await untilTold("full");
  },
  async publish(endpoint, text) {
    const socket = new zmq.Publisher();
    socket.connect(endpoint);
    setInterval(() => socket.send(text), 20);
  },
  async subscribe(endpoint, topic) {
    const socket = new zmq.Subscriber();
    socket.connect(endpoint);
    socket.subscribe(topic);
    console.log((await socket.receive()).toString());
    socket.close();
  },
};

async function untilTold(text) {
  console.log(text.toString());
  await lines().next();
}

const [name, ...args] = process.argv.slice(2);
programs[name](...args);
