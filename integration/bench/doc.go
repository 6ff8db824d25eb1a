// Bench measures Boxfleet against the bare Docker Engine API in one run on one machine. Samples of Boxfleet and of the
// Engine alternate, so other load on the machine affects both alike. Bench prints one table and writes the raw samples
// as JSON.
//
//	go run ./integration/bench [-short] [-only exec,replay] [-o bench.json] [-cpuprofile cpu.out]
//
//	bench: SDK client, clock ──TCP──► deployment process: NATS with fsync, coordinator, worker
//	   │                                 (this binary again, in a role)          │
//	   └────── HTTP, unix socket ──────────────► Docker Engine ◄─────────────────┘
//
// The deployment has the parts that `boxfleet up` runs, in its own process. Three phases differ: restart and age run
// the worker in a separate process, which they kill, and memory runs only NATS and a coordinator. The bare side does
// the same work with the fewest requests that the Engine allows, on kept connections. A sandbox is a network, and a
// container from the same image with the same hardening. An exec is create, start with the stream attached, and
// inspect.
//
// The exit code is 1 if a target is missed (with -short: by more than a factor of four) or a phase fails, and 2 for
// wrong usage. Bench removes everything it created before it exits, also on Ctrl-C.
package main
