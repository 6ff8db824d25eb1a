package worker

import (
	"time"

	"github.com/boxfleet/boxfleet/worker/diskuse"
)

// diskSource is one of the places where a sandbox writes: its directory, the layer of one of its containers, or
// a container that trees are copied to.
type diskSource struct {
	key  key
	what string
}

// diskSample is what sandboxes have on the disks of a host at one moment, and what they had written.
type diskSample struct {
	at      time.Time
	free    map[uint64]int64 // bytes, by device
	use     map[diskSource]diskuse.Usage
	written map[diskSource]int64 // by the processes of a container, to whatever disk
}

// diskWriter is a sandbox that writes, and by what that is known.
type diskWriter struct {
	key  key
	rate float64 // bytes or entries a second; of what changed of late, bytes in all
	by   string
}

// Ways in which a writer is known.
const (
	byUsage   = "what it has on the disk grew"
	byWritten = "its processes wrote the most"
	byRecent  = "it has the most on the disk that was written just before"
)

// fastestWriter is who put the most on a disk between two samples. What is there counts. Only where that does
// not tell why the disk has less room than before, does what processes say they wrote: of those first that were not
// counted whole, and then of whoever wrote enough to be the reason. Who writes the same bytes again and again fills no disk, and
// others write to it, too: the engine, say, while it pulls. entries asks for files instead of bytes.
func fastestWriter(before, now *diskSample, device uint64, entries bool) diskWriter {
	seconds := max(now.at.Sub(before.at).Seconds(), 0.01)
	grown, wrote, uncounted := map[key]int64{}, map[key]int64{}, map[key]int64{}
	for source, use := range now.use {
		was, known := before.use[source]
		if !use.Whole || known && !was.Whole {
			uncounted[source.key] = 0
		}
		if !known || use.Device != device || !use.Whole || !was.Whole {
			continue
		}
		if entries {
			grown[source.key] += use.Entries - was.Entries
		} else {
			grown[source.key] += use.Bytes - was.Bytes
		}
	}
	for source, n := range now.written {
		if was, known := before.written[source]; known {
			wrote[source.key] += n - was
		}
	}
	for k := range uncounted {
		uncounted[k] = wrote[k]
	}
	fastest := most(grown, byUsage, seconds)
	fell := float64(before.free[device]-now.free[device]) / seconds
	if entries || fell < leastRate || fastest.rate >= fell/4 {
		return fastest
	}
	if writer := most(uncounted, byWritten, seconds); writer.rate > max(fastest.rate, leastRate) {
		return writer
	}
	if writer := most(wrote, byWritten, seconds); writer.rate > fastest.rate && writer.rate >= fell/4 {
		return writer
	}
	return fastest
}

// latestWriter is the sandbox that has the most on a disk among those that changed something recently: no more is known
// where a disk was filled between two looks.
func latestWriter(now *diskSample, device uint64) diskWriter {
	recent := map[key]int64{}
	for source, use := range now.use {
		if use.Device == device {
			recent[source.key] += use.Recent
		}
	}
	return most(recent, byRecent, 1)
}

func most(of map[key]int64, by string, seconds float64) diskWriter {
	best := diskWriter{by: by}
	for k, n := range of {
		if rate := float64(n) / seconds; rate > best.rate {
			best.key, best.rate = k, rate
		}
	}
	return best
}
