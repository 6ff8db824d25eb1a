// Package dockertest provides what tests need of a Docker Engine: the socket of the machine's engine, and a proxy before
// that socket which records every request and injects faults. It uses no Docker client, because it is used to test one.
package dockertest
