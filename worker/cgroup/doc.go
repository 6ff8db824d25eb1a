// Package cgroup reads what a container uses from the kernel: the counters of its control groups, version 1 or 2, and
// of its network. It does not ask the engine, which may be slow.
//
//	worker/sandbox ──► Of(pid) ──► Group.Read ──► /sys/fs/cgroup/… and /proc/PID/io
//	               └─► Network(pid) ──► /proc/PID/net/dev
//
// The kernel writes all of these files. What a container controls in them, such as the number of its network
// interfaces, is read with bounds.
//
// The package imports protocol for its errors and worker/hosterr.
package cgroup
