// Work: print each job and commit it: node worker.js ENDPOINT
const { Reply } = require("zeromq");
const { useKeys } = require("./keys");

async function main(endpoint) {
  const rep = new Reply();
  useKeys(rep); // if the door wants CURVE
  rep.connect(endpoint);
  for await (const [payload] of rep) {
    console.log(payload.toString());
    await rep.send("done"); // the answer commits the job and is its result
  }
}

main(process.argv[2]);
