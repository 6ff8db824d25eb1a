// Package integration tests whole deployments: real Docker engines, real NATS servers and clusters, and processes that
// are killed. The tests use integration/fleet and integration/engines. The benchmark is integration/bench;
// integration/seed writes long histories to the log.
package integration
