// node exec.js SANDBOX COMMAND [ARG …]: runs a command in a sandbox, streams its output, and exits with its exit
// code.

const { open, read, request, sleep } = require("./boxfleet");

async function main([sandbox, ...command]) {
  const nc = await open();
  try {
    const exec = `ex-${Date.now().toString(36)}-${process.pid}`;
    await request(nc, "exec", sandbox, exec, { exec_id: exec, exec: { command } });
    const streams = [
      { stream: "stdout", to: process.stdout, offset: 0 },
      { stream: "stderr", to: process.stderr, offset: 0 },
    ];
    for (let ended = 0; ended < streams.length; ) {
      let more = false;
      ended = 0;
      for (const s of streams) {
        const { output } = await read(nc, "output", { sandbox, exec, stream: s.stream, offset: s.offset });
        if (output.missing) process.stderr.write(`[${output.missing} bytes of ${s.stream} are no longer kept]\n`);
        s.to.write(Buffer.from(output.data, "base64"));
        more ||= output.next > s.offset;
        s.offset = output.next;
        if (output.ended && output.next === output.end) ended++;
      }
      if (!more && ended < streams.length) await sleep(100);
    }
    const { exec: x } = await read(nc, "exec", { sandbox, exec });
    if (x.state !== "finished") console.error(`${x.state}: ${x.reason || ""} ${x.error ? x.error.message : ""}`);
    process.exitCode = x.exit_code ?? 1;
  } finally {
    await nc.drain();
  }
}

main(process.argv.slice(2)).catch((e) => {
  console.error(e.message);
  process.exitCode = 2;
});
