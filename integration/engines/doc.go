// Package engines starts real Docker engines for tests, several on one machine, each like a host of
// its own: own data, own socket, own network namespace. They can be stopped, killed, restarted and
// paused, and leave nothing behind.
//
// It needs root, and knows an engine by its processes and its socket only; it imports no Docker
// client. What a killed test run left is removed by scripts/clean, which finds it by [Prefix].
package engines
