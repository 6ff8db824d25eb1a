package doctor

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
)

var now = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

// healthy returns the facts of a fleet in which nothing is wrong, as an operator sees them.
func healthy() Facts {
	stream := protocol.StreamStorage{Name: protocol.StreamEvents, Leader: "n1", Replicas: 3, InSync: 3, MaxBytes: 1 << 30}
	return Facts{
		Version: "1.2.0", Wall: now,
		You: You{Login: LoginCredentials, Role: rights.Operator, Name: "ops", Tenant: "default",
			Issued: now.AddDate(0, -1, 0), Expires: now.AddDate(0, 1, 0)},
		Ping: &protocol.Ping{Version: "1.2.0", Coordinator: "c1", Deployment: "d", Durability: "good", Hosts: 1, Time: now,
			Storage: &protocol.Storage{Streams: []protocol.StreamStorage{stream}, Bytes: 1 << 20, MaxBytes: 1 << 40}},
		Checkup:      &protocol.Checkup{Server: "2.12.1", Cluster: "n", MaxPayload: 1 << 20},
		Coordinators: []protocol.CoordinatorInfo{{Name: "c1", Version: "1.2.0"}, {Name: "c2", Version: "1.2.0"}},
		Hosts: []*protocol.Host{{Worker: "w1", HostID: "h1", Build: "1.2.0", Engine: "28.5.2", Healthy: true,
			State: protocol.HostReady, Firewall: protocol.FirewallNFTables, SeenAt: now,
			LeaseTTL: protocol.Duration(30 * time.Second), DiskFree: 15 << 30, DiskSize: 100 << 30,
			CredentialsExpire: now.AddDate(0, 1, 0), Posture: &protocol.Posture{Seccomp: "default"}}},
	}
}

// Credentials of one day that are replaced twice a day are well; those that somebody forgot to replace are not.
func TestShortLivedCredentialsExpireSoonInTheLastThirdOfTheirLife(t *testing.T) {
	t.Parallel()
	for left, want := range map[time.Duration]int{9 * time.Hour: 0, 7 * time.Hour: 3, -time.Second: 3} {
		f := healthy()
		until := now.Add(left)
		issued := until.Add(-24 * time.Hour)
		f.You.Issued, f.You.Expires = issued, until
		f.Checkup.CredentialsIssued, f.Checkup.CredentialsExpire = issued, until
		f.Hosts[0].CredentialsIssued, f.Hosts[0].CredentialsExpire = issued, until
		if found := Examine(f).Findings; len(found) != want {
			t.Errorf("with %s left: %+v", left, found)
		}
	}
}

func TestAClientWhoseClockIsWrongIsToldOnlyThat(t *testing.T) {
	t.Parallel()
	for _, off := range []time.Duration{-365 * 24 * time.Hour, 365 * 24 * time.Hour} {
		f := healthy()
		f.Wall, f.Skew = now.Add(off), off
		if found := Examine(f).Findings; len(found) != 1 || found[0].Code != ClockClient {
			t.Errorf("%s off: %+v", off, found)
		}
	}
}

// A worker or coordinator that lies cannot make a finding long.
func TestALongTextIsShortened(t *testing.T) {
	t.Parallel()
	f := healthy()
	f.Hosts[0].Worker, f.Hosts[0].Problem = strings.Repeat("w", 1<<20), strings.Repeat("é", 1<<20)
	for _, found := range Examine(f).Findings {
		if len(found.Problem)+len(found.Do)+len(found.Subject) > 4000 {
			t.Errorf("%s has %d bytes", found.Code, len(found.Problem)+len(found.Do)+len(found.Subject))
		}
	}
}

func TestAHealthyFleetHasNoFindings(t *testing.T) {
	t.Parallel()
	r := Examine(healthy())
	if len(r.Findings) > 0 || r.Worst != OK || r.Fleet.Class != Replicated {
		t.Errorf("%+v", r)
	}
}

// A fleet without secrets, a fleet whose coordinators have the same key, and one with a coordinator of an earlier
// version, which does not say, have no finding about keys.
func TestEqualFleetKeysAreWell(t *testing.T) {
	t.Parallel()
	for _, keys := range [][]string{{protocol.NoFleetKey, protocol.NoFleetKey}, {"XA", "XA"}, {"XA", ""}, {"", ""}} {
		f := healthy()
		f.Coordinators[0].FleetKey, f.Coordinators[1].FleetKey = keys[0], keys[1]
		if found := Examine(f).Findings; len(found) > 0 {
			t.Errorf("%q: %+v", keys, found)
		}
	}
}

// ill is what is wrong with a fleet, and the finding that says so.
type ill struct {
	code    Code
	subject string
	says    string
	makeSo  func(f *Facts)
}

const day = 24 * time.Hour

// yearOf returns a certificate of a year, of which so much is left.
func yearOf(of string, left time.Duration) Certificate {
	return Certificate{Of: of, Names: []string{"n1"}, From: now.Add(left - 365*day), Until: now.Add(left)}
}

func onHost(change func(h *protocol.Host)) func(f *Facts) {
	return func(f *Facts) { change(f.Hosts[0]) }
}

func refused(code protocol.Code, reason, message string) *protocol.Error {
	return protocol.Errorf(code, reason, "%s", message)
}

var soon, off, margin = now.Add(50 * time.Hour), protocol.Duration(-7 * time.Second), protocol.Duration(4 * time.Second)

func ofClient() []ill {
	return []ill{
		{AccessRefused, "", "Authorization", func(f *Facts) {
			f.NotConnected = refused(protocol.PermissionDenied, "", "nats: Authorization Violation")
		}},
		{NATSUnreachable, "", "refused", func(f *Facts) {
			f.NotConnected = refused(protocol.Unavailable, "", "connection refused")
		}},
		{NATSSettings, "", "max_payload", func(f *Facts) {
			f.NotConnected = refused(protocol.FailedPrecondition, protocol.ReasonServerSettings, "max_payload is too small")
		}},
		{AccessExpires, "ops", "expire in 50h", func(f *Facts) { f.You.Expires = soon }},
		{NATSCertificateExpires, "n2:4222", "expires in 12 days", func(f *Facts) {
			f.Servers = []Certificate{yearOf("n1:4222", 300*day), yearOf("n2:4222", 12*day)}
		}},
		{NATSCertificateExpired, "n1:4222", "expired at 2026-07-01T11:00:00Z", func(f *Facts) {
			f.Servers = []Certificate{yearOf("n1:4222", -time.Hour)}
		}},
		{NATSCertificateExpired, "n1:4222", "is not valid before", func(f *Facts) {
			f.Servers = []Certificate{yearOf("n1:4222", 366*day)}
		}},
		{NATSCertificateName, "n1:4222", "is not for n1: it has n2, 10.0.0.2", func(f *Facts) {
			f.Servers = []Certificate{yearOf("n1:4222", 300*day)}
			f.Servers[0].Misname, f.Servers[0].Names = "n1", []string{"n2", "10.0.0.2"}
		}},
		{AccessCertificateExpires, "client.pem", "expires in 25h", func(f *Facts) {
			own := yearOf("client.pem", 25*time.Hour)
			f.Own = &own
		}},
		{AccessCertificateExpired, "client.pem", "expired at", func(f *Facts) {
			own := yearOf("client.pem", -time.Second)
			f.Own = &own
		}},
		{AccessOpen, "", "connects with a token", func(f *Facts) { f.You = You{Login: LoginToken, Tenant: "default"} }},
		{AccessOpen, "", "connects with no credentials", func(f *Facts) { f.You = You{Login: LoginNone, Tenant: "default"} }},
		{AccessDenied, "", "not permit", func(f *Facts) {
			f.Ping, f.NoPing = nil, refused(protocol.PermissionDenied, "", "the credentials do not permit it")
		}},
		{CoordinatorSilent, "", "no responders", func(f *Facts) {
			f.Ping, f.NoPing = nil, refused(protocol.Unavailable, "", "no responders")
		}},
		{AccessHidden, "", "the other coordinators, what is owed to other tenants", func(f *Facts) {
			f.You.Role, f.Coordinators, f.NoCoordinators = rights.User, nil, refused(protocol.PermissionDenied, "", "no")
		}},
		{VersionOld, "c1", "what is owed", func(f *Facts) {
			f.Checkup, f.NoCheckup = nil, refused(protocol.Unavailable, "", "no such endpoint")
		}},
		{CoordinatorMute, "", "what is owed", func(f *Facts) {
			f.Checkup, f.NoCheckup = nil, refused(protocol.DeadlineExceeded, "", "not done within --deadline 2s")
		}},
		{CoordinatorMute, "", "anything about hosts", func(f *Facts) {
			f.Hosts, f.NoHosts = nil, refused(protocol.Unavailable, "", "no coordinator answers")
		}},
		{VersionClient, "", "1.1.9", func(f *Facts) { f.Version = "1.1.9" }},
		{ClockClient, "", "6s ahead of", func(f *Facts) { f.Skew = 6 * time.Second }},
	}
}

func ofStore() []ill {
	return []ill{
		{NATSPayload, "", "128KiB", func(f *Facts) { f.Checkup.MaxPayload = 128 << 10 }},
		{CoordinatorLeaderless, "", "no coordinator leads", func(f *Facts) { f.Checkup.Leaderless = true }},
		{CoordinatorAlone, "c1", "the only one", func(f *Facts) { f.Coordinators = f.Coordinators[:1] }},
		{CoordinatorKeyless, "c2", "c2 has no fleet key", func(f *Facts) {
			f.Coordinators[0].FleetKey, f.Coordinators[1].FleetKey = "XA", protocol.NoFleetKey
		}},
		{CoordinatorKeys, "", "c1 to XA, c2 to XB", func(f *Facts) {
			f.Coordinators[0].FleetKey, f.Coordinators[1].FleetKey = "XA", "XB"
		}},
		{CoordinatorKeyLost, "c1", "3 versions of secrets, and the sensitive variables of 2 sandboxes", func(f *Facts) {
			f.Checkup.Sealed = []protocol.SealedTo{{Key: "XA", Missing: true, Versions: 3, Sandboxes: 2}}
		}},
		{CoordinatorKeyOld, "c1", "to the key XA", func(f *Facts) {
			f.Checkup.Sealed = []protocol.SealedTo{{Key: "XA", Versions: 3}}
		}},
		{CoordinatorRefused, "c1", "refused 3 messages", func(f *Facts) { f.Ping.Refused = 3 }},
		{CoordinatorExpires, "c1", "expire in 50h", func(f *Facts) { f.Checkup.CredentialsExpire = soon }},
		{CoordinatorExpires, "c1", "expired at 2026", func(f *Facts) { f.Checkup.CredentialsExpire = now.Add(-time.Hour) }},
		{ClockCoordinator, "c1", "7s behind", func(f *Facts) { f.Ping.Skew = &off }},
		{VersionCoordinator, "", "1.1.0, 1.2.0", func(f *Facts) { f.Coordinators[1].Version = "1.1.0" }},
		{StorageProblem, "", "2 of 3", func(f *Facts) { f.Ping.Storage.Problems = []string{"2 of 3 replicas are in sync"} }},
		{StorageFilling, "KV_x", "KV_x: 9 GiB", func(f *Facts) {
			f.Ping.Storage.Warnings = []string{"KV_x: 9 GiB of 10 GiB are used: delete some"}
		}},
		{StorageUnreplicated, "", "form a cluster", func(f *Facts) { f.Ping.Storage.Streams[0].Replicas = 1 }},
		{StorageSync, "", "sync_interval", func(f *Facts) {
			f.Ping.Storage.Streams[0].Replicas, f.Checkup.Cluster = 1, ""
		}},
		{StorageDead, protocol.StreamDead, "2 requests", func(f *Facts) {
			dead := protocol.StreamStorage{Name: protocol.StreamDead, Replicas: 3, InSync: 3, Messages: 2}
			f.Ping.Storage.Streams = append(f.Ping.Storage.Streams, dead)
		}},
		{VersionOld, "c1", "does not describe its storage", func(f *Facts) { f.Ping.Storage = nil }},
	}
}

func ofHosts() []ill {
	drain := func(deadline time.Time) func(f *Facts) {
		return onHost(func(h *protocol.Host) {
			h.Sandboxes, h.Drain = 2, &protocol.HostDrain{Since: now, Deadline: deadline}
		})
	}
	second := func(state protocol.HostState, problem string) func(f *Facts) {
		return func(f *Facts) {
			h := *f.Hosts[0]
			h.Worker, h.State, h.Problem, h.SeenAt = "w2", state, problem, now.Add(-time.Minute)
			f.Hosts = append(f.Hosts, &h)
		}
	}
	return []ill{
		{HostNone, "", "has no host", func(f *Facts) { f.Hosts = nil }},
		{HostLost, "w2", "last seen 1m0s ago", second(protocol.HostLost, "")},
		{HostSilent, "w2", "no heartbeats", second(protocol.HostSuspect, "")},
		{HostEngine, "w2", "does not answer: gone", second(protocol.HostUnhealthy, "gone")},
		{HostUnisolated, "w1", "no nftables", onHost(func(h *protocol.Host) { h.Firewall, h.Problem = "", "no nftables" })},
		{HostFirewallOff, "w1", "does not isolate", onHost(func(h *protocol.Host) { h.Firewall = protocol.FirewallOff })},
		{HostProblem, "w1", "odd", onHost(func(h *protocol.Host) { h.Problem = "odd" })},
		{HostFull, "w1", "no memory", onHost(func(h *protocol.Host) { h.Full = "no memory" })},
		{HostDisk, "w1", "14GiB of 100GiB", onHost(func(h *protocol.Host) { h.DiskFree = 14 << 30 })},
		{HostLease, "w1", "only 4s more, of 30s", onHost(func(h *protocol.Host) { h.LeaseMargin = &margin })},
		{HostExpires, "w1", "expire in 50h", onHost(func(h *protocol.Host) { h.CredentialsExpire = soon })},
		{HostSeccomp, "w1", "unconfined", onHost(func(h *protocol.Host) {
			h.Posture.Seccomp, h.Posture.Warnings = "unconfined", []string{"the engine's seccomp profile is unconfined"}
		})},
		{HostPosture, "w1", "runc is old", onHost(func(h *protocol.Host) { h.Posture.Warnings = []string{"runc is old"} })},
		{HostCordoned, "w1", "cordoned", onHost(func(h *protocol.Host) { h.Cordoned = true })},
		{HostDraining, "w1", "has 2 sandboxes", drain(now.Add(time.Hour))},
		{HostDraining, "w1", "has 2 sandboxes", drain(time.Time{})},
		{HostDrainLate, "w1", "1h0m0s after", drain(now.Add(-time.Hour))},
		{VersionUnsupported, "w1", "speaks version 2", onHost(func(h *protocol.Host) {
			h.Unsupported = "its worker speaks version 2 of the wire, and the coordinator version 1: upgrade the coordinators"
		})},
		{VersionWorker, "w1", "1.1.0", onHost(func(h *protocol.Host) { h.Build = "1.1.0" })},
		{ClockHost, "w1", "7s behind", onHost(func(h *protocol.Host) { h.Skew, h.ClockOff = &off, true })},
	}
}

func ofOwed() []ill {
	owes := func(kind protocol.OwedKind, tenant, exec string, count int) func(f *Facts) {
		return func(f *Facts) {
			f.Checkup.Owed = []protocol.Owed{{Kind: kind, Tenant: tenant, Sandbox: "s", Exec: exec, Worker: "w1",
				Since: now.Add(-time.Hour)}}
			f.Checkup.OwedCount = count
		}
	}
	return []ill{
		{OwedPlacement, "s", "sandbox s has waited 1h0m0s for a host", owes(protocol.OwedPlacement, "default", "", 1)},
		{OwedCreate, "s", "ready", owes(protocol.OwedCreate, "default", "", 1)},
		{OwedRestart, "s", "restart", owes(protocol.OwedRestart, "default", "", 1)},
		{OwedStop, "s", "stop it, on worker w1", owes(protocol.OwedStop, "default", "", 1)},
		{OwedDelete, "acme: s", "remove it", owes(protocol.OwedDelete, "acme", "", 1)},
		{OwedExec, "s/x", "exec s/x has waited 1h0m0s for its start", owes(protocol.OwedExecStart, "default", "x", 1)},
		{OwedExec, "s/x", "its timeout", owes(protocol.OwedExecEnd, "default", "x", 1)},
		{OwedMore, "s", "teleport", owes("teleport", "default", "", 1)},
		{OwedMore, "", "5 more", func(f *Facts) { f.Checkup.OwedCount = 5 }},
	}
}

// Each fault alone leads to its own finding, and to no other.
func TestEachFaultHasItsOwnFinding(t *testing.T) {
	t.Parallel()
	seen := map[Code]bool{}
	for _, c := range slices.Concat(ofClient(), ofStore(), ofHosts(), ofOwed()) {
		f := healthy()
		c.makeSo(&f)
		r := Examine(f)
		seen[c.code] = true
		if len(r.Findings) != 1 || r.Findings[0].Code != c.code || r.Findings[0].Subject != c.subject ||
			!strings.Contains(r.Findings[0].Problem, c.says) || r.Worst != r.Findings[0].Severity {
			t.Errorf("%s %q %q: got %+v", c.code, c.subject, c.says, r)
			continue
		}
		found := r.Findings[0]
		if strings.Contains(found.Do, "{") || found.Do == "" || strings.HasSuffix(found.Problem, ".") {
			t.Errorf("%s: %q, %q", c.code, found.Problem, found.Do)
		}
	}
	for _, k := range Kinds() {
		if !seen[k.Code] {
			t.Errorf("no fact leads to %s", k.Code)
		}
	}
}

func TestTheMostSevereFindingsComeFirst(t *testing.T) {
	t.Parallel()
	f := healthy()
	f.Hosts[0].Cordoned, f.Hosts[0].Full, f.Hosts[0].State = true, "full", protocol.HostUnhealthy
	f.Checkup.Leaderless = true
	var codes []Code
	for _, found := range Examine(f).Findings {
		codes = append(codes, found.Code)
	}
	want := []Code{CoordinatorLeaderless, HostEngine, HostNone, HostFull, HostCordoned}
	if !slices.Equal(codes, want) {
		t.Errorf("got %q, want %q", codes, want)
	}
}

func TestTheClassOfDurabilityFollowsFromTheStreams(t *testing.T) {
	t.Parallel()
	for want, change := range map[Class]func(f *Facts){
		Synced:  func(f *Facts) { f.Checkup.SyncAlways = true },
		Single:  func(f *Facts) { f.Ping.Storage.Streams[0].Replicas = 1 },
		Nothing: func(f *Facts) { f.Ping.Storage.Streams[0].Error = "it has no leader" },
	} {
		f := healthy()
		change(&f)
		if r := Examine(f); r.Fleet.Class != want {
			t.Errorf("the class is %s, want %s", r.Fleet.Class, want)
		}
	}
}
