package protocol

import "time"

// MeasureQuery is a coordinator's question to a worker: what a sandbox uses now. The worker answers with a
// [MeasureReply] on [MeasuredSubject].
type MeasureQuery struct {
	Version     int    `json:"v"`
	Coordinator string `json:"coordinator"` // name of the coordinator that asks
	ID          string `json:"id"`          // id of this question
	Tenant      string `json:"tenant"`
	Sandbox     string `json:"sandbox"`
	Processes   bool   `json:"processes,omitempty"` // list the processes instead of the use of each container
}

// MeasureReply answers a [MeasureQuery]. One of the pointers is set.
type MeasureReply struct {
	Version   int           `json:"v"`
	Error     *Error        `json:"error,omitempty"`
	Usage     *SandboxUsage `json:"usage,omitempty"`
	Processes *ProcessList  `json:"processes,omitempty"`
}

// SandboxUsage has the resource use of each container of a sandbox. Counters of time and bytes never decrease while a
// container runs: the difference of two readings is the use between them.
type SandboxUsage struct {
	Worker     string           `json:"worker"`
	HostID     string           `json:"host_id"`
	Containers []ContainerUsage `json:"containers"` // the primary container first, then the services by name
}

// ContainerUsage is the resource use of one container. Sizes are in bytes. A limit of 0 means that there is no limit.
type ContainerUsage struct {
	Service string   `json:"service,omitempty"` // empty: the primary container
	Boot    string   `json:"boot"`              // start of the container
	At      Duration `json:"at"`                // when the counters were read: time since the host's boot

	CPU         Duration `json:"cpu"`                 // time that all processes have spent on all cores
	CPULimit    float64  `json:"cpu_limit,omitempty"` // cores
	Memory      Bytes    `json:"memory"`              // without files that the kernel can drop at once
	MemoryLimit Bytes    `json:"memory_limit,omitempty"`
	PIDs        int64    `json:"pids"` // processes and threads
	PIDsLimit   int64    `json:"pids_limit,omitempty"`
	Received    Bytes    `json:"received"` // from the network
	Sent        Bytes    `json:"sent"`
	Read        *Bytes   `json:"read,omitempty"` // from disks; nil: the host's kernel does not tell
	Written     *Bytes   `json:"written,omitempty"`

	Error *Error `json:"error,omitempty"` // why the container could not be measured; then all counters are 0
}

// ProcessList lists the processes of a sandbox.
type ProcessList struct {
	Worker     string               `json:"worker"`
	HostID     string               `json:"host_id"`
	Containers []ContainerProcesses `json:"containers"` // the primary container first, then the services by name
}

// ContainerProcesses lists the processes of one container, without its supervisor, in the order of their ids.
type ContainerProcesses struct {
	Service   string    `json:"service,omitempty"` // empty: the primary container
	Boot      string    `json:"boot"`              // start of the container
	Processes []Process `json:"processes,omitempty"`
	More      int       `json:"more,omitempty"`  // how many processes are not listed
	Error     *Error    `json:"error,omitempty"` // why the processes of this container are not known
}

// Process is one process of a sandbox. Its command comes from the sandbox, and may contain any characters.
type Process struct {
	PID     int      `json:"pid"` // in its container
	Parent  int      `json:"parent,omitempty"`
	Exec    string   `json:"exec,omitempty"`    // exec that it belongs to
	Primary bool     `json:"primary,omitempty"` // it belongs to the container's own command
	UID     uint32   `json:"uid"`
	State   string   `json:"state,omitempty"` // as in /proc: R, S, D, T, Z, …
	Threads int      `json:"threads,omitempty"`
	CPU     Duration `json:"cpu"`     // time spent on all cores
	Memory  Bytes    `json:"memory"`  // resident
	Started Duration `json:"started"` // time since the host's boot; with PID, it identifies the process
	At      Duration `json:"at"`      // when the counters were read: time since the host's boot
	Command string   `json:"command"` // arguments, separated by spaces; at most [MaxProcessCommand] bytes
}

const (
	// MaxProcesses is how many processes of one container are listed.
	MaxProcesses = 512

	// MaxProcessCommand is the maximum length of the command of a listed process in bytes.
	MaxProcessCommand = 256
)

// CPUSince returns how many cores the container used on average since an earlier reading. known is false if the
// readings are of different starts of the container, or if no time has passed between them.
func (c *ContainerUsage) CPUSince(before *ContainerUsage) (cores float64, known bool) {
	if before == nil || c.Error != nil || before.Error != nil || c.Boot != before.Boot {
		return 0, false
	}
	return coresBetween(before.CPU, c.CPU, before.At, c.At)
}

// CPUSince returns how many cores the process used on average since an earlier reading, which may be nil: then since
// its start. known is false if the readings are of different processes, or if no time has passed between them.
func (p *Process) CPUSince(before *Process) (cores float64, known bool) {
	if before == nil {
		return coresBetween(0, p.CPU, p.Started, p.At)
	}
	if p.PID != before.PID || p.Started != before.Started {
		return 0, false
	}
	return coresBetween(before.CPU, p.CPU, before.At, p.At)
}

func coresBetween(usedBefore, usedAfter, before, after Duration) (cores float64, known bool) {
	if after <= before || usedAfter < usedBefore {
		return 0, false
	}
	return time.Duration(usedAfter-usedBefore).Seconds() / time.Duration(after-before).Seconds(), true
}

// Age returns how long the process had run when its counters were read.
func (p *Process) Age() time.Duration { return max(p.At-p.Started, 0).Std() }
