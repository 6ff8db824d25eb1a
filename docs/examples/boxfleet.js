// Shared by the examples in this directory: a connection, requests and reads, all in JSON. Needs: npm install nats

const { connect, credsAuthenticator, headers, createInbox, StringCodec } = require("nats");
const fs = require("fs");

const text = StringCodec();
const creds = process.env.BOXFLEET_CREDS && fs.readFileSync(process.env.BOXFLEET_CREDS);
const { tenant, user } = creds ? identity(creds) : { tenant: process.env.BOXFLEET_TENANT || "default" };
const who = user ? `${tenant}.${user}` : tenant; // in subjects; without credentials there is no user
const inboxes = user ? `_INBOX.${who}` : "_INBOX"; // coordinators answer requests only to such inboxes

// identity reads the tenant and the user from a credentials file that `boxfleet auth add` has written.
function identity(file) {
  const token = file.toString().split("\n")[1];
  const claims = JSON.parse(Buffer.from(token.split(".")[1], "base64url"));
  const tag = claims.nats.tags.find((t) => t.startsWith("tenant:"));
  if (!tag) throw new Error("these credentials are not for a user of a tenant: make some with boxfleet auth add user");
  return { tenant: tag.slice("tenant:".length), user: claims.name };
}

exports.open = () =>
  connect({
    servers: process.env.BOXFLEET_NATS || "nats://127.0.0.1:4222",
    token: process.env.BOXFLEET_TOKEN,
    authenticator: creds ? credsAuthenticator(creds) : undefined,
    inboxPrefix: inboxes,
  });

// Refused is an error from Boxfleet. Code and reason are for programs, the message is for people.
class Refused extends Error {
  constructor(e) {
    super([e.code, e.reason, e.field, e.message].filter(Boolean).join(": "));
    Object.assign(this, { code: e.code, reason: e.reason, field: e.field });
  }
}
exports.Refused = Refused;

function outcome(reply) {
  if (reply.error) throw new Refused(reply.error);
  return reply;
}

// read queries a coordinator: get, list, exec, events, output …
exports.read = async (nc, endpoint, fields) => {
  const m = await nc.request(`boxfleet.v1.api.${who}.${endpoint}`, text.encode(JSON.stringify({ v: 1, ...fields })), { timeout: 10000 });
  return outcome(JSON.parse(text.decode(m.data)));
};

// request publishes a request and waits for its outcome. Without an answer it publishes the request again under the same
// id, which cannot run it twice: a repeated request finds its own result.
exports.request = async (nc, verb, sandbox, id, payload) => {
  const inbox = createInbox(inboxes);
  const answers = nc.subscribe(inbox);
  const h = headers();
  h.set("Content-Type", "application/json");
  h.set("Boxfleet-Request", id);
  h.set("Boxfleet-Reply", inbox);
  const data = text.encode(JSON.stringify({ v: 1, ...payload }));
  try {
    for (let tries = 0; tries < 5; tries++) {
      await nc.jetstream().publish(`boxfleet.v1.request.${who}.${verb}.${sandbox}`, data, { headers: h });
      const late = setTimeout(() => nc.publish(inbox), 5000); // an empty message ends the wait
      for await (const m of answers) {
        if (m.data.length === 0) break;
        clearTimeout(late);
        return outcome(JSON.parse(text.decode(m.data)));
      }
    }
    throw new Error(`${verb} ${sandbox}: no answer`);
  } finally {
    answers.unsubscribe();
  }
};

exports.sleep = (ms) => new Promise((done) => setTimeout(done, ms));
