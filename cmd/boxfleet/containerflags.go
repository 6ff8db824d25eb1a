package main

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/spec"
)

// containerFlags are the flags for the container of a sandbox.
type containerFlags struct {
	disk, shmSize, gpus, hostname, profile, runtime, pull string
	ttl, queueTimeout, createTimeout, grace               string
	readOnly                                              bool
	tmpfs, onDelete                                       []string
	onDeleteTimeout                                       time.Duration
}

func (f *containerFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.disk, "disk", "",
		"how much the sandbox may write to its own file system, such as 10GiB (default: no limit)")
	flags.StringVar(&f.shmSize, "shm-size", "", "size of /dev/shm, such as 1GiB (default: the engine's)")
	flags.StringArrayVar(&f.tmpfs, "tmpfs", nil, "in-memory file system at `TARGET[:SIZE]`; may be repeated")
	flags.BoolVar(&f.readOnly, "read-only", false, "make the root file system read-only")
	flags.StringVar(&f.gpus, "gpus", "", "number of GPUs, or all")
	flags.StringVar(&f.hostname, "hostname", "", "host name in the sandbox (default: the sandbox's id)")
	flags.StringVar(&f.profile, "profile", "", "capabilities of commands run as root: hardened (default) or standard")
	flags.StringVar(&f.ttl, "ttl", "",
		"delete the sandbox this `duration` after its creation, in any state (default: never)")
	flags.StringVar(&f.queueTimeout, "queue-timeout", "",
		"fail if no host has taken the sandbox after this `duration` (default 24h)")
	flags.StringVar(&f.createTimeout, "create-timeout", "",
		"fail if the sandbox is not ready this `duration` after a host took it (default 5m)")
	flags.StringVar(&f.grace, "stop-grace", "", "`duration` between TERM and KILL when the sandbox stops (default 5s)")
	flags.StringArrayVar(&f.onDelete, "on-delete", nil,
		"`argument` of a command to run before a running sandbox is deleted; repeat it for each argument")
	flags.DurationVar(&f.onDeleteTimeout, "on-delete-timeout", 0, "time limit of the --on-delete command (default 1m)")
	flags.StringVar(&f.pull, "pull", "", "when to pull the image: missing, always or never (default missing)")
	flags.StringVar(&f.runtime, "runtime", "", "OCI runtime, such as runsc (default: the engine's)")
}

// apply sets in s the fields whose flags are given. onDelete is the on_delete command of the spec file. Without
// --on-delete, --on-delete-timeout applies to that command.
func (f *containerFlags) apply(s *protocol.SandboxSpec, onDelete *protocol.Hook) error {
	for _, text := range []struct {
		field *string
		value string
	}{{&s.GPUs, f.gpus}, {&s.Hostname, f.hostname}, {&s.Profile, f.profile}, {&s.Runtime, f.runtime}, {&s.Pull, f.pull}} {
		if text.value != "" {
			*text.field = text.value
		}
	}
	s.ReadOnly = s.ReadOnly || f.readOnly
	if len(f.onDelete) > 0 {
		s.OnDelete = &protocol.Hook{Command: f.onDelete}
	}
	if f.onDeleteTimeout != 0 {
		if s.OnDelete == nil {
			if onDelete == nil {
				return usage("--on-delete-timeout needs --on-delete")
			}
			s.OnDelete = &protocol.Hook{Command: onDelete.Command}
		}
		s.OnDelete.Timeout = protocol.Duration(f.onDeleteTimeout)
	}
	for _, d := range []struct {
		flag  string
		field *protocol.Duration
		value string
	}{
		{"--ttl", &s.TTL, f.ttl}, {"--queue-timeout", &s.QueueTimeout, f.queueTimeout},
		{"--create-timeout", &s.CreateTimeout, f.createTimeout}, {"--stop-grace", &s.Grace, f.grace},
	} {
		if d.value == "" {
			continue
		}
		if err := d.field.UnmarshalText([]byte(d.value)); err != nil {
			return usage("%s: %v", d.flag, err)
		}
	}
	if err := size("--disk", &s.Disk, f.disk); err != nil {
		return err
	}
	if err := size("--shm-size", &s.ShmSize, f.shmSize); err != nil {
		return err
	}
	for _, arg := range f.tmpfs {
		m, err := spec.ParseTmpfs(arg)
		if err != nil {
			return usage("--tmpfs: %v", err)
		}
		s.Tmpfs = append(s.Tmpfs, m)
	}
	return nil
}

// size parses a size if the flag was given.
func size(flag string, field *protocol.Bytes, value string) error {
	if value == "" {
		return nil
	}
	n, err := protocol.ParseBytes(value)
	if err != nil {
		return usage("%s: %v", flag, err)
	}
	*field = n
	return nil
}

// containerRows returns the rows about the container of a sandbox that differ from the defaults.
func containerRows(s *protocol.SandboxSpec) (rows [][]any) {
	add := func(name string, value any, set bool) {
		if set {
			rows = append(rows, []any{name, value})
		}
	}
	add("disk", s.Disk, s.Disk != 0)
	add("shm size", s.ShmSize, s.ShmSize != 0)
	add("gpus", s.GPUs, s.GPUs != "")
	add("hostname", s.Hostname, s.Hostname != "")
	add("profile", s.Profile, s.Profile != "" && s.Profile != protocol.ProfileHardened)
	add("pull", s.Pull, s.Pull != "" && s.Pull != protocol.PullMissing)
	add("runtime", s.Runtime, s.Runtime != "")
	if s.OnDelete != nil {
		add("on delete", fmt.Sprintf("%q, at most %s", s.OnDelete.Command, s.OnDelete.Timeout), true)
	}
	add("read-only", "the root file system", s.ReadOnly)
	for _, m := range s.Tmpfs {
		size := "half the memory"
		if m.Size != 0 {
			size = m.Size.String()
		}
		add("tmpfs", m.Target+", "+size, true)
	}
	return rows
}
