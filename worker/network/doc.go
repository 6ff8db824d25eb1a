// Package network gives each sandbox its own network, isolated from the host and from other sandboxes.
//
//	subnets.go    a /28 for each sandbox, from the worker's own pool
//	isolation.go  Isolation: what a spec may use on this host; the name servers of a sandbox
//	settings.go   settings: what the operator configured
//	rules.go      rules: the firewall rules of one network, from before it exists until after its removal
//	sync.go       at each reconciliation: compares all rules with the engine's list of networks
//	orphans.go    orphanBridges: removes bridges that a killed engine left without a network
//	ports.go      chooses free host ports for ports that the spec leaves open
//
// The rules of a network are written before the network is created, and nothing starts in a network whose rules are
// missing.
//
// The package imports protocol, worker/docker for the engine's networks, worker/firewall for the rules, and
// worker/hosterr for the reason why a host cannot be protected. It does not import worker.
package network
