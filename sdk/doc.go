// Package sdk drives a Boxfleet fleet: it creates sandboxes, runs commands in them and reads their output and history.
//
//	client, err := sdk.Connect(ctx, sdk.Options{URL: "nats://127.0.0.1:4222"})
//	box, err := client.Create(ctx, sdk.SandboxSpec{Image: "boxfleet/demo:busybox"})
//	result, err := box.Exec(ctx, sdk.ExecSpec{Command: []string{"uname", "-a"}})
//
// # Where to find what
//
//	Client            Create, Get, List, DeleteByLabels, Upload; Sandbox makes a handle from an id or a name
//	Sandbox           Exec, Start, Stop, Resume, Extend, Delete, Events, Logs, Execs; ExecByID makes a handle from an id
//	Exec              Wait, Cancel, Output, Reader, Events
//	Client.Hosts      for operators: list, cordon, drain and forget hosts
//	Client.Images     for operators: import and list images
//	Client.Raw        requests, queries and batches as they are on the wire
//
// A sandbox has an id, which is never used again, and may have a name ([WithName]), which another sandbox can take once
// this one has failed or is deleted. [Client.Sandbox] takes either; the handle then stays with that one sandbox.
//
// # Lists, events and output
//
// Every list and every stream is an iter.Seq2 of items and errors. It ends with the first error, with its context, or
// when the loop is left. [ReadAll] collects a list into a slice. Calls whose name ends in Page return one page.
// [WithFollow] makes events, output and logs continue with what comes later.
//
// # Errors and contexts
//
// Every error matches *[Error] with errors.As. If a context ended the call, the error also matches context.Canceled or
// context.DeadlineExceeded with errors.Is. A command that exits non-zero is a result, not an error.
//
// Calls that wait for something end only with their context, and that ends only the call: sandboxes and execs continue.
// Each call documents what a context leaves behind that ended too early. A call that sends a request can be repeated
// with the same [WithRequestID] and then finds what the first attempt did.
//
// # How a call travels
//
//	Create, Exec, Stop … ── request ──> queue ──> coordinator ── answer ──> Client
//	                                                   │
//	      feed <── live batches, one subscription ── history <── worker
//	        │
//	        ├── the end of an exec     ── Exec, Wait
//	        ├── the state of a sandbox ── Create, Stop, WaitReady …
//	        └── Events: the history and what follows in one sequence
//
// A client follows the history of each sandbox that it works with through one shared subscription, its feed. Waiters
// register before the request is sent, so nothing can be missed and nothing is polled. After a reconnect or a gap the
// feed reads what is missing from the history.
//
// The package imports protocol, spec, jetstream, imageref, imagetar, backoff and wake of this module, and so neither the
// Docker client nor the NATS server.
package sdk
