// Push each argument as one job: node producer.js ENDPOINT PAYLOAD...
const { Push } = require("zeromq");

async function main([endpoint, ...payloads]) {
  const push = new Push();
  push.connect(endpoint);
  for (const payload of payloads) await push.send(payload);
  push.close(); // the process ends when everything is sent
}

main(process.argv.slice(2));
