package streams

import (
	"strconv"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/boxfleet/boxfleet/worker/attach"
	"github.com/boxfleet/boxfleet/worker/files"
)

// A client may name any number of users. Nothing may stay of the sessions that are dropped for others.
func TestNothingIsLeftOfDroppedSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSessions()
		defer s.close()
		before := goleak.IgnoreCurrent()
		container := &attach.Attachment{}
		for i := range mostUnused {
			s.release(s.keep(sessionKey{container: container, user: strconv.Itoa(i)}, files.New(files.Config{})))
		}
		s.mu.Lock()
		s.dropUnusedLocked()
		left := len(s.byKey)
		s.mu.Unlock()
		if left != 0 {
			t.Errorf("%d sessions are left", left)
		}
		synctest.Wait()
		if err := goleak.Find(before); err != nil {
			t.Error(err)
		}
	})
}
