// Package sandbox brings one sandbox on this host to what the log says.
//
//	notifications, engine events, supervisor
//	     │
//	sandbox.go   one goroutine: inspect the host (local.go), decide.Next, do one operation, repeat
//	     │
//	     ├─ create.go     make what the sandbox lacks: network.go, containers.go, passwd.go, gpus.go, phases.go
//	     ├─ start.go      start the container, again after a stop or with its engine
//	     ├─ stop.go       end everything, stop; remove.go, strays.go
//	     ├─ primary.go    the connection to the container's supervisor, and the sandbox's own command
//	     ├─ execs.go      a goroutine for each exec: exec.go
//	     └─ services.go   a goroutine for each service ──► worker/service
//	           │
//	      append.go ──► worker/decide ──► journal ──► the log
//
// Each operation can be interrupted at any point and repeated. A worker that restarts therefore takes the same steps.
//
// The package imports protocol, jetstream, backoff, wake, supervisor/control, and of worker the packages worker/attach,
// worker/decide, worker/disk, worker/docker, worker/firewall, worker/hostdir, worker/hosterr, worker/hostfiles,
// worker/network, worker/output, worker/progress, worker/service, worker/supervise and worker/treecopy.
package sandbox
