package streams

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// told collects what events tell about operations on files.
type told struct {
	history
	by map[string]protocol.StreamUse // by user and operation
}

func (h *told) Used(ctx context.Context, uses []protocol.StreamUse) error {
	if err := h.history.Used(ctx, uses); err != nil {
		return err
	}
	for _, u := range uses {
		key := u.User + " " + u.Operation
		all := sum(h.by[key], u)
		all.Path = u.Path
		h.by[key] = all
	}
	return nil
}

// change carries out operations in the container of a sandbox, one after another within a second.
func (h *told) change(t *testing.T, operations int, of func(i int) (user string, r protocol.FileRequest, err error)) {
	t.Helper()
	s := newUses(slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		s.run(ctx, ended)
	}()
	for i := range operations {
		user, r, err := of(i)
		c := &Call{User: user, Open: &protocol.StreamOpen{Kind: protocol.StreamKindFile}, sandbox: h,
			server: &Server{uses: s}}
		got := c.change(&r, func() error {
			c.Sent(len(r.Content))
			return err
		})
		if !errors.Is(got, err) {
			t.Errorf("got %v, want %v", got, err)
		}
		time.Sleep(time.Second / time.Duration(operations))
	}
	time.Sleep(time.Minute)
	cancel()
	close(ended)
	<-done
}

func TestManyChangesOfFilesMakeFewEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &told{by: map[string]protocol.StreamUse{}}
		h.change(t, 10_000, func(i int) (string, protocol.FileRequest, error) {
			path := "/" + strings.Repeat("d/", i%3000) + "f"
			if i%2 == 0 {
				return "anna", protocol.FileRequest{Remove: &protocol.FileRemove{Path: path}}, nil
			}
			return "ben", protocol.FileRequest{Whole: true, Content: []byte("abc"), Write: &protocol.FileWrite{Path: path}}, nil
		})
		if h.events > 2 || h.most > 2 {
			t.Errorf("10,000 changes within a second made %d events of at most %d entries, want 2 of 2", h.events, h.most)
		}
		if u := h.by["anna remove"]; u.Opened != 5000 || u.Closed != 5000 || u.Sent != 0 {
			t.Errorf("the history tells of Anna's removals: %+v", u)
		}
		if u := h.by["ben write"]; u.Opened != 5000 || u.Sent != 15_000 || len(u.Path) > protocol.MaxUsedPath ||
			u.Path == "" {
			t.Errorf("the history tells of Ben's writes: %+v", u)
		}
	})
}

func TestTheHistoryTellsOfChangesThatFailAndOfNoReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &told{by: map[string]protocol.StreamUse{}}
		h.change(t, 3, func(i int) (string, protocol.FileRequest, error) {
			if i == 0 {
				return "anna", protocol.FileRequest{Mkdir: &protocol.FileMkdir{Path: "/\xff"}}, errors.New("refused")
			}
			return "anna", protocol.FileRequest{Stat: &protocol.FileStat{Paths: []string{"/"}}}, nil
		})
		if u := h.by["anna mkdir"]; len(h.by) != 1 || u.Opened != 1 || u.Failed != 1 || u.Path != "/" {
			t.Errorf("the history tells of %+v", h.by)
		}
	})
}
