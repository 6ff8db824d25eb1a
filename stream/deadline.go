package stream

import (
	"sync"
	"time"
)

// deadline is the deadline of reads or writes. The Conn's lock guards it.
type deadline struct {
	at    time.Time
	timer *time.Timer
}

// set changes the deadline. When the deadline passes, the calls that wait on the condition wake up.
func (d *deadline) set(t time.Time, waiters *sync.Cond) {
	d.stop()
	d.at = t
	if !t.IsZero() {
		d.timer = time.AfterFunc(time.Until(t), func() {
			waiters.L.Lock()
			defer waiters.L.Unlock()
			waiters.Broadcast()
		})
	}
	waiters.Broadcast()
}

func (d *deadline) stop() {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}

func (d *deadline) hasPassed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }
