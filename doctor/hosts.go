package doctor

import (
	"slices"
	"strings"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// A disk is reported if its free space is below lowPercent and also below plenty.
const (
	lowPercent = 15
	plenty     = protocol.Bytes(20 << 30)
)

// hosts examines the hosts.
func (e *examination) hosts() {
	if e.NoHosts != nil {
		return
	}
	isReady := func(h *protocol.Host) bool { return h.State == protocol.HostReady }
	switch {
	case len(e.Hosts) == 0:
		e.find(HostNone, "", "the fleet has no host")
	case !slices.ContainsFunc(e.Hosts, isReady):
		e.find(HostNone, "", "none of the %d hosts is ready", len(e.Hosts))
	}
	for _, h := range e.Hosts {
		e.intent(h)
		switch h.State {
		case protocol.HostLost:
			e.find(HostLost, h.Worker, "the host of worker %s is lost: its lock has expired%s", h.Worker, e.since(h))
		case protocol.HostSuspect:
			e.find(HostSilent, h.Worker, "worker %s sends no heartbeats%s", h.Worker, e.since(h))
		default:
			e.host(h)
		}
	}
}

// since says when a host was last seen.
func (e *examination) since(h *protocol.Host) string {
	if h.SeenAt.IsZero() {
		return ""
	}
	return "; last seen " + e.now().Sub(h.SeenAt).Round(time.Second).String() + " ago"
}

// intent reports what operators want of a host.
func (e *examination) intent(h *protocol.Host) {
	switch {
	case h.Drain != nil && !h.Drain.Deadline.IsZero() && h.Sandboxes > 0 && e.now().Sub(h.Drain.Deadline) > time.Minute:
		e.find(HostDrainLate, h.Worker, "the host of worker %s has %d sandboxes, %s after the deadline of its drain",
			h.Worker, h.Sandboxes, e.now().Sub(h.Drain.Deadline).Round(time.Second))
	case h.Drain != nil:
		e.find(HostDraining, h.Worker, "the host of worker %s is drained, and has %d sandboxes", h.Worker, h.Sandboxes)
	case h.Cordoned:
		e.find(HostCordoned, h.Worker, "the host of worker %s is cordoned", h.Worker)
	}
}

// host examines a host that sends heartbeats.
func (e *examination) host(h *protocol.Host) {
	switch {
	case h.State == protocol.HostUnhealthy:
		e.find(HostEngine, h.Worker, "the engine of worker %s does not answer: %s", h.Worker, h.Problem)
	case h.Firewall == "":
		e.find(HostUnisolated, h.Worker, "worker %s cannot isolate the networks of sandboxes: %s", h.Worker, h.Problem)
	case h.Problem != "":
		e.find(HostProblem, h.Worker, "worker %s: %s", h.Worker, h.Problem)
	}
	if h.Firewall == protocol.FirewallOff {
		e.find(HostFirewallOff, h.Worker, "worker %s does not isolate the networks of its sandboxes", h.Worker)
	}
	if h.Full != "" {
		e.find(HostFull, h.Worker, "the host of worker %s takes no new sandboxes: %s", h.Worker, h.Full)
	}
	if h.DiskSize > 0 && h.DiskFree < plenty && h.DiskFree < h.DiskSize/100*lowPercent {
		e.find(HostDisk, h.Worker, "a disk of worker %s has %s of %s free", h.Worker, h.DiskFree, h.DiskSize)
	}
	if m := h.LeaseMargin; m != nil {
		e.find(HostLease, h.Worker, "worker %s may trust its host's lock for only %s more, of %s", h.Worker, m, h.LeaseTTL)
	}
	if expiresSoon(h.CredentialsIssued, h.CredentialsExpire, e.now()) {
		e.find(HostExpires, h.Worker, "the credentials of worker %s %s", h.Worker, left(h.CredentialsExpire, e.now()))
	}
	if h.ClockOff && h.Skew != nil {
		e.find(ClockHost, h.Worker, "the clock of the host of worker %s is %s that of the NATS server that leads the event "+
			"log", h.Worker, direction(h.Skew.Std()))
	}
	e.posture(h)
}

// posture reports how a host could isolate its sandboxes better.
func (e *examination) posture(h *protocol.Host) {
	if h.Posture == nil {
		return
	}
	unfiltered := h.Posture.Seccomp == "none" || h.Posture.Seccomp == "unconfined"
	if unfiltered {
		e.find(HostSeccomp, h.Worker, "the engine of worker %s filters no system calls: its seccomp profile is %s", h.Worker,
			h.Posture.Seccomp)
	}
	for _, warning := range h.Posture.Warnings {
		if !unfiltered || !strings.Contains(warning, "seccomp") {
			e.find(HostPosture, h.Worker, "the host of worker %s: %s", h.Worker, warning)
		}
	}
}
