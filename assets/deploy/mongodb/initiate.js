// Initiates the replica set of MEMBERS (names, separated by commas), and makes its users: `admin`, and the one of RUN.
// Each step that is done already is left out, so it may run again, for a further run or after it was interrupted.
const password = require("fs").readFileSync("/run/mongo/admin-password", "utf8").trim();
const members = process.env.MEMBERS.split(",");
const run = process.env.RUN || "";

// Runs a command that may fail with the code that says that it is done already.
function unlessDone(database, command, done) {
  try {
    db.getSiblingDB(database).runCommand(command);
  } catch (failed) {
    if (failed.codeName !== done) throw failed;
  }
}

const set = { _id: "rs0", members: members.map((name, _id) => ({ _id, host: `${name}:27017` })) };
if (!db.hello().setName) unlessDone("admin", { replSetInitiate: set }, "AlreadyInitialized");
const until = Date.now() + 120000;
for (let now = db.hello(); !now.isWritablePrimary; now = db.hello()) {
  if (now.primary && now.primary !== now.me) throw new Error(`The primary is ${now.primary}: run this there.`);
  if (Date.now() > until) throw new Error("No member became the primary: are all of them up and reachable?");
  sleep(200);
}

// The first user can be made without a login, and no other one.
unlessDone("admin", { createUser: "admin", pwd: password, roles: ["root"] }, "Unauthorized");
db.getSiblingDB("admin").auth("admin", password);
if (run) {
  const roles = ["readWrite", "dbAdmin"].map((role) => ({ role, db: run }));
  unlessDone("$external", { createUser: `CN=${run},O=agentrl-runs`, roles }, "Location51003");
}
print(`The set ${set._id} has the members ${members.join(", ")}${run ? ` and the user of the run ${run}` : ""}.`);
