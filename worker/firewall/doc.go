// Package firewall keeps the networks of sandboxes apart from their host, from each other, from
// private ranges and from cloud metadata, by nftables in the network namespace of the Docker Engine.
//
//	packet from a sandbox ─► prerouting ─► chain of its bridge ─► never, internet, none or its ranges
//	                             │            (source, replies, the host, connection limit, its own network)
//	                             └─► input: no connection that a sandbox opens ends at the host
//
// Each deployment has a table of its own, with its own base chains. Docker rebuilds its rules at each start, and an
// operator may reload a firewall; neither touches this table. Its chains run before address translation, so a port
// published on the host counts as the host's. Every write is idempotent: the transaction that created a rule also
// restores it.
//
// [Firewall] consists of three parts. A write takes the networks from the ledger, and writes them to the table in the
// host's namespace:
//
//	firewall.go    Firewall: protect, restore, check and remove the rules of networks
//	ledger.go      ledger: the networks that should be protected, and those that are gone
//	table.go       table: the deployment's table, by netlink; the record of bridges
//	host.go        host: the engine's host and the lock of all parts
//	rules.go       the rules themselves
//	policy.go      what a sandbox may connect to, as text and as a value
//	resolvers.go   the host's own addresses and name servers
//	bridge.go      bridges that a killed engine left behind
//	namespace.go   the engine's network namespace
//	link.go        its interfaces
//	freeport.go    free ports in that namespace
//	errors.go      translation of the kernel's errors
//
// It may import protocol, and is the only package that knows nftables.
package firewall
