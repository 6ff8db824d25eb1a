package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// needPayload is the size of Boxfleet's largest messages.
const needPayload = protocol.Bytes(1 << 20)

// coordinators examines the coordinators and their NATS server.
func (e *examination) coordinators() {
	if e.Ping.Refused > 0 {
		e.find(CoordinatorRefused, e.Ping.Coordinator, "coordinator %s refused %d messages of the event log since its "+
			"start, because their writers are not proven", e.Ping.Coordinator, e.Ping.Refused)
	}
	if replicas := e.replicas(); replicas > 1 && len(e.Coordinators) == 1 {
		e.find(CoordinatorAlone, e.Coordinators[0].Name, "coordinator %s is the only one, and the streams have %d replicas",
			e.Coordinators[0].Name, replicas)
	}
	e.fleetKeys()
	e.sealed()
	c := e.Checkup
	if c == nil {
		return
	}
	if c.Leaderless {
		e.find(CoordinatorLeaderless, "", "coordinator %s answers, but no coordinator leads", e.Ping.Coordinator)
	}
	if c.MaxPayload > 0 && c.MaxPayload < needPayload {
		e.find(NATSPayload, "", "the NATS server of coordinator %s accepts messages of up to %s, and Boxfleet sends up to %s",
			e.Ping.Coordinator, c.MaxPayload, needPayload)
	}
	if expiresSoon(c.CredentialsIssued, c.CredentialsExpire, e.now()) {
		e.find(CoordinatorExpires, e.Ping.Coordinator, "the credentials of coordinator %s %s", e.Ping.Coordinator,
			left(c.CredentialsExpire, e.now()))
	}
}

// sealed reports values that the coordinator cannot open, and values that keep it from giving up a replaced key. If
// another coordinator lets clients seal to the missing key, fleetKeys reports that.
func (e *examination) sealed() {
	if e.Checkup == nil {
		return
	}
	for _, s := range e.Checkup.Sealed {
		has := func(c protocol.CoordinatorInfo) bool { return c.FleetKey == s.Key }
		if s.Missing && slices.ContainsFunc(e.Coordinators, has) {
			continue
		}
		code, how := CoordinatorKeyOld, "were sealed before the fleet key was replaced, to the key "+s.Key
		if s.Missing {
			code, how = CoordinatorKeyLost, fmt.Sprintf("are sealed to the fleet key %s, which coordinator %s lacks", s.Key,
				e.Ping.Coordinator)
		}
		e.find(code, e.Ping.Coordinator, "%d versions of secrets, and the sensitive variables of %d sandboxes, %s",
			s.Versions, s.Sandboxes, how)
	}
}

// fleetKeys reports coordinators whose fleet keys differ. If no coordinator has a fleet key, the fleet keeps no
// secrets.
func (e *examination) fleetKeys() {
	var keys, have []string
	for _, c := range e.Coordinators {
		if c.FleetKey != "" && c.FleetKey != protocol.NoFleetKey {
			have = append(have, c.Name+" to "+c.FleetKey)
			keys = append(keys, c.FleetKey)
		}
	}
	if len(keys) == 0 {
		return
	}
	for _, c := range e.Coordinators {
		if c.FleetKey == protocol.NoFleetKey {
			e.find(CoordinatorKeyless, c.Name, "coordinator %s has no fleet key: while the others are away, no worker gets "+
				"the values of secrets", c.Name)
		}
	}
	slices.Sort(keys)
	if len(slices.Compact(keys)) > 1 {
		e.find(CoordinatorKeys, "", "coordinators let clients seal to different fleet keys: %s", strings.Join(have, ", "))
	}
}

// replicas returns the smallest number of replicas of a stream; 0: unknown.
func (e *examination) replicas() (least int) {
	if e.Ping.Storage == nil {
		return 0
	}
	for _, s := range e.Ping.Storage.Streams {
		if s.Error == "" && (least == 0 || s.Replicas < least) {
			least = s.Replicas
		}
	}
	return least
}

// class returns what an acknowledged write survives now.
func (e *examination) class() Class {
	least := e.replicas()
	broken := e.Ping.Storage != nil &&
		slices.ContainsFunc(e.Ping.Storage.Streams, func(s protocol.StreamStorage) bool { return s.Error != "" })
	switch {
	case least == 0 || broken:
		return Nothing
	case e.Checkup != nil && e.Checkup.SyncAlways:
		return Synced
	case least > 1:
		return Replicated
	}
	return Single
}

// storage examines the streams.
func (e *examination) storage() {
	s := e.Ping.Storage
	if s == nil {
		e.find(VersionOld, e.Ping.Coordinator, "the coordinator does not describe its storage")
		return
	}
	for _, problem := range s.Problems {
		e.find(StorageProblem, "", "%s", problem)
	}
	for _, warning := range s.Warnings {
		subject, _, _ := strings.Cut(warning, ":")
		e.find(StorageFilling, subject, "%s", warning)
	}
	single := e.replicas() == 1 && e.Checkup != nil
	switch {
	case single && e.Checkup.Cluster != "":
		e.find(StorageUnreplicated, "", "the NATS servers form a cluster, but the streams have one replica: "+
			"the loss of one server stops the fleet and may lose its data")
	case single && !e.Checkup.SyncAlways:
		e.find(StorageSync, "", "the streams have one replica: an acknowledged write survives a power loss only if the NATS "+
			"server has sync_interval: always, which cannot be checked from here")
	}
	for _, stream := range s.Streams {
		if stream.Name == protocol.StreamDead && stream.Messages > 0 {
			e.find(StorageDead, stream.Name, "%d requests could not be processed and are kept in %s", stream.Messages,
				stream.Name)
		}
	}
}

// clocks examines the clocks of the answering coordinator and of this machine.
func (e *examination) clocks() {
	if skew := e.Ping.Skew; skew != nil && skew.Std().Abs() > protocol.MaxSkew {
		e.find(ClockCoordinator, e.Ping.Coordinator, "the clock of coordinator %s is %s that of the NATS server that leads "+
			"the event log", e.Ping.Coordinator, direction(skew.Std()))
	}
	if e.Skew.Abs() > protocol.MaxSkew {
		e.find(ClockClient, "", "the clock of this machine is %s that of the NATS server that leads the event log",
			direction(e.Skew))
	}
}

// direction says how far a clock is ahead of another, or behind it.
func direction(ahead time.Duration) string {
	if ahead < 0 {
		return ahead.Abs().Round(time.Second/10).String() + " behind"
	}
	return ahead.Round(time.Second/10).String() + " ahead of"
}

// versions compares the versions of this program and of all roles with that of the answering coordinator.
func (e *examination) versions() {
	var versions []string
	for _, c := range e.Coordinators {
		if !slices.Contains(versions, c.Version) {
			versions = append(versions, c.Version)
		}
	}
	if len(versions) > 1 {
		slices.Sort(versions)
		e.find(VersionCoordinator, "", "the coordinators have the versions %s", strings.Join(versions, ", "))
	}
	for _, h := range e.Hosts {
		if h.Unsupported != "" {
			e.find(VersionUnsupported, h.Worker, "worker %s gets no sandboxes: %s", h.Worker, h.Unsupported)
		}
		if h.Build != "" && h.Build != e.Ping.Version {
			e.find(VersionWorker, h.Worker, "worker %s has version %s, and coordinator %s has %s", h.Worker, h.Build,
				e.Ping.Coordinator, e.Ping.Version)
		}
	}
	if e.Version != e.Ping.Version {
		e.find(VersionClient, "", "this program has version %s, and coordinator %s has %s", e.Version, e.Ping.Coordinator,
			e.Ping.Version)
	}
}
