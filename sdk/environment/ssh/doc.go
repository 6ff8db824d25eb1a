// Package ssh makes an environment of another machine, through the ssh program of this machine.
//
//	env, err := ssh.New(ssh.Config{Host: "build1", User: "box", KnownHosts: "/etc/boxfleet/known_hosts"})
//	defer env.Close()
//
// The options are strict: the host's key must be known, nobody is asked for a password, and nothing is forwarded. The
// settings of the user in ~/.ssh/config are not read. Calls share one connection, which Close ends. The other machine
// needs a POSIX shell, not necessarily as the login shell; see package shell, which does the work.
//
// A command has the rights of the user on the other machine: SSH is a way to get there, and isolates nothing.
//
// The package imports only sdk/environment and shell.
package ssh
