// Package dockertest is what tests need of a Docker Engine: where the machine's engine is, and a
// proxy on its socket that records every request and makes the engine fail on demand. It uses no
// Docker client, so that it can judge one.
package dockertest
