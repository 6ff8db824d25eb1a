// Package engines starts real Docker engines for tests, several on one machine. Each engine is like a separate host: it
// has its own data, socket and network namespace. Tests can stop, kill, restart and pause engines. Nothing of an engine
// is left after its test.
//
// The package needs root. It uses only the processes and the socket of an engine, and imports no Docker client. If a
// test run is killed, scripts/clean removes the remains, which it finds by [Prefix].
package engines
