package firewall

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
)

func unprotected(format string, args ...any) error {
	return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonFirewall, format, args...)
}

// explain translates an error of the kernel.
func explain(err error) error {
	var known *protocol.Error
	switch {
	case err == nil || errors.As(err, &known):
		return err
	case errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES):
		return unprotected("the worker may not write nftables rules in the engine's network namespace; "+
			"it needs CAP_NET_ADMIN: %v", err)
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EOPNOTSUPP),
		errors.Is(err, unix.ENOENT):
		return unprotected("the kernel lacks a feature of nftables that the firewall needs: %v", err)
	}
	return protocol.Errorf(protocol.Unavailable, "", "write nftables rules: %s", strings.TrimSpace(err.Error()))
}
