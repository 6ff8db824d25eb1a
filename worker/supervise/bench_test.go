package supervise_test

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/supervisor/control"
)

// BenchmarkExec measures the time from the start to the result of the command `true`, which runs in a container. It
// reports the median time of an exec, and the number of execs per second. Like a worker, it forgets ended execs.
func BenchmarkExec(b *testing.B) {
	for _, user := range []string{"0", "1000"} {
		for _, parallel := range []int{1, 8, 64} {
			b.Run("user="+user+"/parallel="+strconv.Itoa(parallel), func(b *testing.B) { benchmarkExec(b, user, parallel) })
		}
	}
}

func benchmarkExec(b *testing.B, user string, parallel int) {
	var mu sync.Mutex
	ended := map[string]chan control.Result{}
	s := newSandbox(b, option{onEnd: func(r control.Result) {
		mu.Lock()
		defer mu.Unlock()
		ended[r.ID] <- r
		delete(ended, r.ID)
	}})
	one := func() time.Duration {
		id, done := newID(), make(chan control.Result, 1)
		mu.Lock()
		ended[id] = done
		mu.Unlock()
		began := time.Now()
		start := control.Start{ID: id, Argv: []string{"true"}, User: user, OutputLimit: 1 << 20, InlineLimit: 64 << 10}
		if _, err := s.link.Start(context.Background(), start); err != nil {
			b.Error(err)
		}
		r := <-done
		took := time.Since(began)
		if code(r) != "0" {
			b.Errorf("exec %s ended with exit code %s and error %v, want 0", id, code(r), r.Error)
		}
		go s.link.Forget(context.Background(), id)
		return took
	}
	one()
	var took []time.Duration
	var running sync.WaitGroup
	b.ResetTimer()
	work := make(chan struct{})
	for range parallel {
		running.Go(func() {
			for range work {
				d := one()
				mu.Lock()
				took = append(took, d)
				mu.Unlock()
			}
		})
	}
	for range b.N {
		work <- struct{}{}
	}
	close(work)
	running.Wait()
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*9/10].Microseconds()), "p90-µs")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "execs/s")
}
