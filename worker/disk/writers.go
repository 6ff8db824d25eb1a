package disk

import (
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/diskuse"
)

// source is a place to which a sandbox writes data: its directory, the layer of a container, the deleted files of a
// container, or a copy into a container.
type source struct {
	key  protocol.SandboxKey
	what string
}

// sample records how much disk space the sandboxes of a host use at one moment, and how much they have written.
type sample struct {
	at      time.Time
	free    map[uint64]int64 // bytes, by device
	use     map[source]diskuse.Usage
	written map[source]int64 // bytes that the processes of a container wrote, to any disk
}

// writer is a sandbox that writes to a disk.
type writer struct {
	key  protocol.SandboxKey
	rate float64 // bytes or inodes per second; if latestWriter chose the sandbox, its number of recent bytes
	by   string  // the evidence: one of the constants below
}

// Evidence against a writer. It is part of the error that the sandbox fails with.
const (
	byUsage   = "its files grew the most"
	byWritten = "its processes wrote the most"
	byRecent  = "it has the most recently written data on that disk"
)

// fastestWriter returns the sandbox that added the most to a device between two samples. It counts inodes if the
// parameter inodes is true, and bytes otherwise.
//
// fastestWriter compares how much the files of each sandbox grew. A process may write the same bytes again and again
// without filling the disk. Therefore the bytes that processes wrote count only if no growth explains the lost space.
// In that case, fastestWriter first checks the sandboxes whose files could not be counted completely, and then all
// sandboxes that wrote enough to be the cause. Possibly no sandbox is the cause: the engine may be pulling an image.
func fastestWriter(before, now *sample, device uint64, inodes bool) writer {
	seconds := max(now.at.Sub(before.at).Seconds(), 0.01)
	grown, uncounted := growth(before, now, device, inodes)
	wrote := map[protocol.SandboxKey]int64{}
	for src, n := range now.written {
		if was, known := before.written[src]; known {
			wrote[src.key] += n - was
		}
	}
	for k := range uncounted {
		uncounted[k] = wrote[k]
	}
	fastest := most(grown, byUsage, seconds)
	lost := float64(before.free[device]-now.free[device]) / seconds
	if inodes || lost < leastRate || fastest.rate >= lost/4 {
		return fastest
	}
	if w := most(uncounted, byWritten, seconds); w.rate > max(fastest.rate, leastRate) {
		return w
	}
	if w := most(wrote, byWritten, seconds); w.rate > fastest.rate && w.rate >= lost/4 {
		return w
	}
	return fastest
}

// growth returns by how much the files of each sandbox grew on a device. The result uncounted has each sandbox with a
// source that one of the samples counted only in part.
func growth(before, now *sample, device uint64, inodes bool) (grown, uncounted map[protocol.SandboxKey]int64) {
	grown, uncounted = map[protocol.SandboxKey]int64{}, map[protocol.SandboxKey]int64{}
	for src, use := range now.use {
		was, known := before.use[src]
		if !use.Complete || known && !was.Complete {
			uncounted[src.key] = 0
		}
		if !known || use.Device != device || !use.Complete || !was.Complete {
			continue
		}
		if inodes {
			grown[src.key] += use.Inodes - was.Inodes
		} else {
			grown[src.key] += use.Bytes - was.Bytes
		}
	}
	return grown, uncounted
}

// latestWriter returns the sandbox with the most recently changed bytes on a device. It is the best guess if a disk
// filled up before there were two samples to compare.
func latestWriter(now *sample, device uint64) writer {
	recent := map[protocol.SandboxKey]int64{}
	for src, use := range now.use {
		if use.Device == device {
			recent[src.key] += use.Recent
		}
	}
	return most(recent, byRecent, 1)
}

// most returns the sandbox with the largest amount. The result has a zero key if no amount is positive.
func most(amounts map[protocol.SandboxKey]int64, by string, seconds float64) writer {
	best := writer{by: by}
	for k, n := range amounts {
		if rate := float64(n) / seconds; rate > best.rate {
			best.key, best.rate = k, rate
		}
	}
	return best
}
