// Package network gives each sandbox a network of its own and keeps it apart from the host and from other sandboxes.
//
//	subnets.go    a /28 for each sandbox, from the worker's own pool
//	isolation.go  Isolation: what a spec may use on this host; the name servers of a sandbox
//	settings.go   settings: what the operator configured
//	rules.go      rules: the firewall rules of one network: before it exists, while it exists, after its removal
//	sync.go       all rules against the engine's list of networks, at each reconciliation
//	orphans.go    orphanBridges: bridges that a killed engine left without a network
//	ports.go      free ports of the host for those that the spec leaves open
//
// A network's rules exist before the network does, and nothing starts in a network whose rules are not in place.
//
// The package imports protocol, worker/docker for the engine's networks, worker/firewall for the rules and
// worker/hosterr for the reason why a host cannot be protected. It does not
// import worker.
package network
