// Package sandbox brings one sandbox on this host to the state in the log.
//
//	notifications, engine events, supervisor
//	     │
//	sandbox.go   one goroutine: inspect the host (local.go), decide.Next, do one operation, repeat
//	     │
//	     ├─ create.go     make what the sandbox lacks: network.go, containers.go, passwd.go, gpus.go, phases.go
//	     ├─ start.go      start the container: the first time, after a stop, or after its engine ended
//	     ├─ stop.go       end all commands, stop the containers; remove.go and strays.go remove them
//	     ├─ primary.go    the connection to the container's supervisor, and the sandbox's own command
//	     ├─ execs.go      a goroutine for each exec ──► worker/execs
//	     └─ services.go   a goroutine for each service ──► worker/service
//	           │
//	      append.go ──► worker/decide ──► journal ──► the log
//
// Each operation can be interrupted at any point and repeated. A restarted worker therefore needs no separate recovery:
// it takes the same steps.
//
// A client inside the sandbox comes in through reach.go and input.go; measure.go reads what the containers use.
//
// The package imports protocol, jetstream, backoff, wake, supervisor/control, and of worker the packages worker/attach,
// worker/cgroup, worker/decide, worker/disk, worker/docker, worker/execs, worker/firewall, worker/hostdir,
// worker/hosterr, worker/hostfiles, worker/network, worker/output, worker/progress, worker/secrets, worker/service and
// worker/treecopy.
package sandbox
