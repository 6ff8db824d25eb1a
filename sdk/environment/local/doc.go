// Package local runs commands on this machine with no isolation at all: they can do whatever the user of this process
// can.
//
// It is for trusted commands, such as a developer's own, and for trying code that later runs in a sandbox. Commands
// inherit the environment variables of this process. A relative path begins at the directory of the Config; nothing
// keeps a command or a path inside that directory.
//
// The package imports only sdk/environment and shell, which does the work.
package local
