// Keys for a door that wants CURVE: the pair in the file SLUICEMQ_KEY_FILE, which `sluicemq key new --out FILE`
// makes, and the broker's public key in SLUICEMQ_SERVER_KEY. Without them the socket stays as it is.
const { readFileSync } = require("fs");

exports.useKeys = (socket) => {
  const { SLUICEMQ_KEY_FILE: file, SLUICEMQ_SERVER_KEY: serverKey } = process.env;
  if (!file || !serverKey) return;
  const text = readFileSync(file, "utf8");
  socket.curveServerKey = serverKey;
  socket.curvePublicKey = /^public_key = "(.{40})"/m.exec(text)[1];
  socket.curveSecretKey = /^secret_key = "(.{40})"/m.exec(text)[1];
};
