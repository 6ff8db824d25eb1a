// Package firewall keeps the networks of sandboxes apart from their host, from each other, from
// private ranges and from cloud metadata, by nftables in the network namespace of the Docker Engine.
//
//	packet from a sandbox ─► prerouting ─► chain of its bridge ─► never, internet, none or its ranges
//	                             │            (source, answers, the host, how many, its own network)
//	                             └─► input: nothing that a sandbox began ends at the host
//
// A table of its own, with its own base chains, is nobody else's: Docker's daemon rebuilds its rules at
// each start and an operator's firewall is loaded anew, and neither touches this one. Its chains come
// before address translation, so that a port that is published on the host is seen as the host's. Each
// deployment has its own table. Everything is written so that it may be written again: what is missing
// is put back by the same transaction that made it.
//
// It may import protocol, and is the only package that knows nftables.
package firewall
