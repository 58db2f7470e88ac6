// Push each argument as one job: node producer.js ENDPOINT PAYLOAD...
const { Push } = require("zeromq");
const { useKeys } = require("./keys");

async function main([endpoint, ...payloads]) {
  const push = new Push();
  useKeys(push); // if the door wants CURVE
  push.connect(endpoint);
  for (const payload of payloads) await push.send(payload);
  push.close(); // the process ends when everything is sent
}

main(process.argv.slice(2));
