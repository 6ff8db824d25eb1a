// node events.js SANDBOX: prints a sandbox's history and follows it until the sandbox is deleted.

const { open, read, sleep } = require("./boxfleet");

async function main([sandbox]) {
  const nc = await open();
  try {
    for (let from = 0; ; ) {
      const { history, sequence } = await read(nc, "events", { sandbox, from });
      for (const e of history.events) {
        const about = e.exec ? e.exec.id : e.service ? e.service.name : "";
        console.log(e.seq, e.time, e.kind, e.state, about, e.error ? e.error.message : e.reason || "");
        if (e.state === "deleted") return;
      }
      from = history.next;
      if (from > sequence) await sleep(500); // no further events yet
    }
  } finally {
    await nc.drain();
  }
}

main(process.argv.slice(2)).catch((e) => {
  console.error(e.message);
  process.exitCode = 2;
});
