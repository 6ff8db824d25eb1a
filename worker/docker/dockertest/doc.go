// Package dockertest provides the socket of the machine's Docker Engine to tests, and a proxy in front of that socket.
// The proxy records every request and injects faults. The package uses no Docker client, because the tests of the
// Docker client use this package.
package dockertest
