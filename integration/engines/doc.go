// Package engines starts real Docker engines for tests, several on one machine. Each one is like a separate host: it
// has its own data, socket and network namespace. Engines can be stopped, killed, restarted and paused, and leave
// nothing behind.
//
// The package needs root. It uses only the processes and the socket of an engine, and imports no Docker client.
// The remains of a killed test run are removed by scripts/clean, which finds them by [Prefix].
package engines
