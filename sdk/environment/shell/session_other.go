//go:build !unix

package shell

import "syscall"

// ownSession does nothing: this system has no sessions.
func ownSession() *syscall.SysProcAttr { return nil }
