//go:build unix

package shell

import "syscall"

// ownSession makes a program the leader of a session.
func ownSession() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
