// Package sdk is what callers import to drive a Boxfleet fleet.
//
//	client, err := sdk.Connect(ctx, sdk.Options{URL: "nats://127.0.0.1:4222"})
//	box, err := client.Create(ctx, protocol.SandboxSpec{Image: "boxfleet/demo:busybox"})
//	result, err := box.Exec(ctx, protocol.ExecSpec{Command: []string{"uname", "-a"}})
//
// A sandbox has an id, which is never used again, and may have a name ([WithName]), which passes on to another one when
// it has failed or is deleted. [Client.Sandbox] takes either; the handle is then that one sandbox's.
//
// How a call travels:
//
//	Create, Exec, Stop … ── request ──> queue ──> coordinator ── answer ──> Client
//	                                                   │
//	      feed <── live events, one subscription ── history <── worker
//	        │
//	        ├── an exec's end    ── Exec, Wait
//	        ├── a sandbox's state ── Create, Stop, WaitReady …
//	        └── Events: replay and live in one sequence
//
// A client hears the history of each sandbox it works with through one shared subscription, its
// feed. Waiters are registered before the request is sent, so nothing can be missed, and nothing
// is polled. After a reconnect or a gap the feed reads what is missing from the history.
//
// Waiting ends with the caller's context and nothing else; the sandbox or the exec goes on. Every
// error matches *protocol.Error with errors.As; the end of a context also matches
// context.Canceled or context.DeadlineExceeded with errors.Is. A command that exited non-zero is a
// result and no error.
//
// The package imports protocol, spec, jetstream, imageref and imagetar of this module, and so neither the
// Docker client nor the NATS server.
package sdk
