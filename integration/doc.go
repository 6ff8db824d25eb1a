// Package integration holds the tests of whole fleets: real engines, real NATS servers and
// clusters, processes that are killed. What they are made of is in integration/fleet and
// integration/engines; the benchmark is integration/bench. integration/seed writes a past into the log.
package integration
