// Plain ZeroMQ programs as any textbook has them; each knows only an endpoint. See plain.c.
const zmq = require("zeromq");

const { CURVE_SERVER_KEY, CURVE_PUBLIC_KEY, CURVE_SECRET_KEY } = process.env;
const keys = CURVE_SERVER_KEY
  ? { curveServerKey: CURVE_SERVER_KEY, curvePublicKey: CURVE_PUBLIC_KEY, curveSecretKey: CURVE_SECRET_KEY }
  : {};

// Made when it is needed: who reads stdin does not end.
let input;
const lines = () => (input ??= require("readline").createInterface({ input: process.stdin })[Symbol.asyncIterator]());

const programs = {
  async ask(endpoint, ...texts) {
    const socket = new zmq.Request(keys);
    socket.connect(endpoint);
    for (const text of texts) {
      await socket.send(text);
      console.log((await socket.receive()).toString());
    }
    socket.close();
  },
  async answer(endpoint, told) {
    const socket = new zmq.Reply(keys);
    socket.connect(endpoint);
    for await (const [text] of socket) {
      if (told) await untilTold(text);
      await socket.send("Node:" + text);
    }
  },
  async work(endpoint, commit) {
    const socket = new zmq.Pull(keys);
    const done = new zmq.Push(keys);
    socket.connect(endpoint);
    done.connect(commit);
    for await (const [receipt, text] of socket) {
      await untilTold(text);
      await done.send(["COMMIT", receipt]);
    }
  },
  async push(endpoint, ...texts) {
    const socket = new zmq.Push(keys);
    socket.connect(endpoint);
    for (const text of texts) await socket.send(text);
    socket.close();
  },
  async pull(endpoint) {
    const socket = new zmq.Pull(keys);
    socket.connect(endpoint);
    for await (const [text] of socket) console.log(text.toString());
  },
  async take(endpoint, hwm, count) {
    const socket = new zmq.Pull({ ...keys, receiveHighWaterMark: Number(hwm) });
    socket.connect(endpoint);
    for (let number = 0; number < Number(count); number++) console.log("got " + (await socket.receive()));
    await untilTold("full");
  },
  async publish(endpoint, text) {
    const socket = new zmq.Publisher(keys);
    socket.connect(endpoint);
    setInterval(() => socket.send(text), 20);
  },
  async subscribe(endpoint, topic) {
    const socket = new zmq.Subscriber(keys);
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
