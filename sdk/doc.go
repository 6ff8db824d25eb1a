// Package sdk drives a Boxfleet fleet: it creates sandboxes, runs commands in them and reads their output and history.
//
//	client, err := sdk.Connect(ctx, sdk.Options{URL: "nats://127.0.0.1:4222"})
//	box, err := client.Create(ctx, sdk.SandboxSpec{Image: "boxfleet/demo:busybox"})
//	result, err := box.Exec(ctx, sdk.ExecSpec{Command: []string{"uname", "-a"}})
//
// # Where to find what
//
//	Client            Create, Ensure, Get, List, DeleteByLabels, Upload; Sandbox makes a handle from an id or a name
//	Sandbox           Command, Exec, RunCode, Start, Stop, Resume, Extend, Delete, Events, Logs, Execs;
//	                  ExecByID makes a handle from an id
//	                  DialContext, WaitForPort, WaitForHTTP for servers in it; Usage, Processes
//	Sandbox.Files     read, write, copy, edit, search and watch its files
//	Exec              Wait, Cancel, Signal, Stdin, Output, Reader, Events
//	Client.Secrets    set, list and remove the secrets of the tenant
//	Client.TenantInfo what the tenant may use and uses
//	Client.Hosts      for operators: list, cordon, drain and forget hosts
//	Client.Images     for operators: import and list images
//	environment       a package of its own: commands and files in a sandbox, a container, over SSH or on this machine
//	Client.Raw        requests, queries and batches in the form that travels over NATS
//
// A sandbox has an id, which is never used again. It may also have a name ([WithName]). When the sandbox has failed or
// is deleted, another sandbox can take the name. [Client.Sandbox] accepts an id or a name. The handle keeps referring
// to the sandbox that it found first, even if another sandbox takes the name.
//
// # Lists, events and output
//
// Every list and every stream is an iter.Seq2 of items and errors. It ends after the first error, when its context
// ends, or when the caller leaves the loop. [ReadAll] collects a list into a slice. Calls with names that end in Page
// return one page. With [WithFollow] a sequence of events, output or logs continues with the items that are added
// later.
//
// # Errors and contexts
//
// Every error matches *[Error] with errors.As. If a context ended the call, the error also matches context.Canceled or
// context.DeadlineExceeded with errors.Is. A command that exits non-zero is a result, not an error.
//
// A call that waits for a sandbox or an exec gives up only when its context ends. Only the call ends then: sandboxes
// and execs continue. Each call documents what remains if its context ends too early. To repeat a call that sends a
// request, pass the same [WithRequestID]: the second call then returns the sandbox or exec of the first call.
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
// A client has one subscription to the history of each sandbox that it uses: the sandbox's feed. All calls about that
// sandbox share the feed. A call registers with the feed before it sends its request. It therefore misses no event and
// need not poll. After a reconnect or a gap the feed reads the missing events from the history.
//
// In this module, the package imports only protocol, spec, jetstream, imageref, imagetar, backoff and wake. It links
// neither the Docker client nor the NATS server.
package sdk
