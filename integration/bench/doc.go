// Bench measures Boxfleet beside the bare Docker Engine API: in one run, on one machine, sample by
// sample in turn, so that whatever else the machine does hits both. It prints one table, and writes
// the raw samples as JSON.
//
//	go run ./integration/bench [-short] [-only exec,replay] [-o bench.json] [-cpuprofile cpu.out]
//
//	bench: SDK client, clock ──TCP──► deployment process: NATS with fsync, coordinator, worker
//	   │                                 (this binary again, in a role)          │
//	   └────── HTTP, unix socket ──────────────► Docker Engine ◄─────────────────┘
//
// The deployment is what `boxfleet up` runs, as a process of its own; only the restart phase runs
// its worker apart, to kill it. The bare side does the same with the fewest requests that the Engine
// needs, on kept connections: a network, and a container from the same image under the same
// hardening; an exec as create, start with the stream attached, and inspect.
//
// It ends with 1 when a target is missed (with -short: by a factor of four) or a phase failed, and with 2 for wrong use. Everything
// that it made is removed at the end, also on Ctrl-C.
package main
