// Package firewall isolates the networks of sandboxes from their host, from each other, from private ranges and from
// cloud metadata services. It writes nftables rules in the network namespace of the Docker Engine.
//
//	packet from a sandbox ─► prerouting ─► chain of its bridge ─► never, internet, none or its ranges
//	                             │            (source, replies, the host, connection limit, its own network)
//	                             └─► input: refuses connections that a sandbox opens to the host
//
// Each deployment has its own table with its own base chains. Docker rebuilds its rules at each start, and an operator
// may reload a firewall; neither changes this table. The table's chains run before address translation, so a packet to
// a port published on the host counts as a packet to the host. Every write is idempotent: the transaction that creates
// a rule can be repeated, and then restores the rule if it is missing.
//
// [Firewall] consists of the parts ledger, table and host. A write takes the networks from the ledger, and writes their
// rules to the table in the host's namespace:
//
//	firewall.go    Firewall: protect, restore, check and remove the rules of networks
//	ledger.go      ledger: the networks that should be protected, and networks that are gone
//	table.go       table: the deployment's table, by netlink; the record of bridges
//	host.go        host: the engine's host, and the lock that guards all three parts
//	rules.go       the rules themselves
//	policy.go      what a sandbox may connect to, as text and as a value
//	resolvers.go   the host's own addresses and name servers
//	bridge.go      bridges that a killed engine left behind
//	namespace.go   the engine's network namespace
//	link.go        the interfaces in that namespace
//	freeport.go    free ports in that namespace
//	errors.go      translation of the kernel's errors
//
// The package imports protocol, and is the only package that knows nftables.
package firewall
