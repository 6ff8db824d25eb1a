package jetstream_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// acceptedBefore appends the acceptances of many execs in large batches. Earlier versions of Boxfleet did so, because
// they had no limit for the size of a batch.
func acceptedBefore(t testing.TB, c *jetstream.Conn, tenant, sandbox string, n int, spec *protocol.ExecSpec) {
	t.Helper()
	state, batches := readHistory(t, c, tenant, sandbox)
	last := batches[len(batches)-1].Record
	for i := 0; i < n; {
		b := &protocol.Batch{
			Version: protocol.Version,
			Tenant:  tenant,
			Sandbox: sandbox,
			ID:      fmt.Sprint("old-", i),
			Writer:  "k1",
		}
		for ; i < n && len(b.Events) < 1000; i++ {
			b.Events = append(
				b.Events,
				protocol.Event{Kind: protocol.ExecAccepted, Time: time.Now(), Tenant: tenant, Sandbox: sandbox,
					Exec: &protocol.ExecDetails{ID: fmt.Sprint("x", i), Spec: spec}},
			)
			must(t, state.Number(b.Events[len(b.Events)-1:]))
		}
		b.Events[0].Record = 0
		var err error
		last, err = c.Append(t.Context(), b, last)
		must(t, err)
	}
}

// failAll ends every exec, as decisions of coordinators and workers do.
func failAll(s *protocol.State, _ time.Time) ([]protocol.Event, error) {
	if s.Sandbox.State != protocol.StateReady {
		return nil, nil
	}
	var events []protocol.Event
	for _, x := range s.Active() {
		events = append(
			events,
			protocol.Event{
				Kind:  protocol.ExecFailed,
				Error: protocol.Errorf(protocol.Unavailable, protocol.ReasonHostLost, "the host was lost"),
				Exec:  &protocol.ExecDetails{ID: x.ID},
			},
		)
	}
	return append(events, protocol.Event{Kind: protocol.SandboxFailed}), nil
}

func TestADecisionLargerThanAMessageIsAppendedInParts(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		c := d.opened(t)
		readySandbox(t, c, d.tenant, "s1")
		acceptedBefore(t, c, d.tenant, "s1", 6000, &protocol.ExecSpec{Command: []string{"true"}})
		began := time.Now()
		events, err := journal(c, d.tenant, "s1", "k2").Do(t.Context(), failAll)
		must(t, err)
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("the decision took %s, want at most 10 s", took)
		}
		if len(events) != 6001 {
			t.Errorf("Do returned %d events, want 6001", len(events))
		}
		for i, e := range events {
			if e.Record == 0 || e.Sequence != uint64(6004+i) {
				t.Fatalf("event %d is %+v", i, e)
			}
		}
		state, batches := readHistory(t, c, d.tenant, "s1")
		if state.Sandbox.State != protocol.StateFailed || state.Sandbox.ActiveExecs != 0 {
			t.Errorf("the sandbox is %s with %d active execs", state.Sandbox.State, state.Sandbox.ActiveExecs)
		}
		for _, b := range batches[7:] {
			if len(b.Events) > jetstream.MaxBatchEvents || len(b.Encode()) > jetstream.MaxBatchBytes {
				t.Errorf("a message has %d events and %d bytes, more than the limits", len(b.Events), len(b.Encode()))
			}
		}
	})
}

// The size of each part is limited too, not only its number of events.
func TestPartsOfADecisionFitTheServersMaximumPayload(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c := d.opened(t)
	readySandbox(t, c, d.tenant, "s1")
	accept := func(s *protocol.State, _ time.Time) (events []protocol.Event, _ error) {
		for i := range 40 {
			if id := fmt.Sprint("x", i); s.Execs[id] == nil {
				events = append(events, protocol.Event{Kind: protocol.ExecAccepted, Exec: &protocol.ExecDetails{ID: id,
					Spec: &protocol.ExecSpec{Command: []string{"true"}, Stdin: make([]byte, 100<<10)}}})
			}
		}
		return events, nil
	}
	events, err := journal(c, d.tenant, "s1", "k1").Do(t.Context(), accept)
	must(t, err)
	s, batches := readHistory(t, c, d.tenant, "s1")
	if len(events) != 40 || s.Sandbox.ActiveExecs != 40 || len(batches) != 1+6 {
		t.Errorf("%d events and %d active execs in %d messages; want 40, 40 and 7",
			len(events), s.Sandbox.ActiveExecs, len(batches))
	}
}

// The process dies after the first part, and another process decides on the same sandbox.
func TestAfterACrashBetweenPartsTheNextProcessContinues(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c := d.opened(t)
	readySandbox(t, c, d.tenant, "s1")
	acceptedBefore(t, c, d.tenant, "s1", 2000, &protocol.ExecSpec{Command: []string{"true"}})
	dies, asked := d.opened(t), 0
	failOnce := func(s *protocol.State, now time.Time) ([]protocol.Event, error) {
		if asked++; asked > 1 {
			return nil, protocol.Errorf(protocol.Unavailable, "", "dead")
		}
		return failAll(s, now)
	}
	_, err := journal(dies, d.tenant, "s1", "k1").Do(t.Context(), failOnce)
	wantError(t, err, protocol.Unavailable, "")
	s, _ := readHistory(t, c, d.tenant, "s1")
	if s.Sandbox.State != protocol.StateReady || s.Sandbox.ActiveExecs != 2000-jetstream.MaxBatchEvents {
		t.Fatalf("the sandbox is %s with %d active execs", s.Sandbox.State, s.Sandbox.ActiveExecs)
	}
	_, err = journal(c, d.tenant, "s1", "k2").Do(t.Context(), failAll)
	must(t, err)
	if s, _ := readHistory(t, c, d.tenant, "s1"); s.Sandbox.State != protocol.StateFailed {
		t.Fatalf("the sandbox is %s", s.Sandbox.State)
	}
}

func TestAnEventLargerThanAMessageIsRefusedAlone(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c := d.opened(t)
	readySandbox(t, c, d.tenant, "s1")
	j := journal(c, d.tenant, "s1", "k1")
	done := make(chan error, 20)
	for i := range cap(done) {
		go func() {
			_, err := j.Do(t.Context(), acceptExec(fmt.Sprint("x", i)))
			done <- err
		}()
	}
	_, err := j.Do(t.Context(), func(*protocol.State, time.Time) ([]protocol.Event, error) {
		return []protocol.Event{
			{
				Kind: protocol.ExecAccepted,
				Exec: &protocol.ExecDetails{ID: "small", Spec: &protocol.ExecSpec{Command: []string{"true"}}},
			},
			{
				Kind: protocol.ExecAccepted,
				Exec: &protocol.ExecDetails{
					ID:   "large",
					Spec: &protocol.ExecSpec{Command: []string{strings.Repeat("x", 2<<20)}},
				},
			},
		}, nil
	})
	wantError(t, err, protocol.InvalidArgument, protocol.ReasonTooLarge)
	if e := protocol.AsError(err); e.Field != "spec" {
		t.Errorf("the error names field %q, want spec", e.Field)
	}
	for range cap(done) {
		must(t, receive(t, 10*time.Second, "the result of an exec that was decided at the same time", done))
	}
	if s, _ := readHistory(t, c, d.tenant, "s1"); s.Sandbox.ActiveExecs != cap(done) {
		t.Errorf("%d execs are active, want %d", s.Sandbox.ActiveExecs, cap(done))
	}
}

// fill sets every field of a value, with strings of many lengths.
func fill(v reflect.Value, depth int, random *rand.Rand) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth, random)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(1<<40, 123456789)))
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i), depth+1, random)
		}
	case reflect.Slice:
		n := random.IntN(4)
		if v.Type().Elem().Kind() == reflect.Uint8 {
			n = random.IntN(70000)
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			fill(v.Index(i), depth+1, random)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range random.IntN(4) {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(key, depth+1, random)
			fill(value, depth+1, random)
			v.SetMapIndex(key, value)
		}
	case reflect.String:
		v.SetString(strings.Repeat("ü", random.IntN(1<<random.IntN(10))))
	case reflect.Int, reflect.Int64:
		v.SetInt(1 << 62)
	case reflect.Uint64, reflect.Uint8:
		v.SetUint(1<<63 + 1)
	case reflect.Float64:
		v.SetFloat(1.1)
	case reflect.Bool:
		v.SetBool(true)
	}
}

func TestEventSizesAreNotUnderestimated(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		e := protocol.Event{}
		fill(reflect.ValueOf(&e).Elem(), 0, random)
		b := &protocol.Batch{Version: 1, ID: "i", Events: []protocol.Event{e}}
		before := len((&protocol.Batch{Version: 1, ID: "i", Events: []protocol.Event{}}).Encode())
		if size, is := jetstream.EventSize(&e), len(b.Encode())-before; size < is {
			t.Fatalf("an event of %d bytes is estimated at %d", is, size)
		}
	}
	small := protocol.Event{
		Kind: protocol.ExecAccepted,
		Exec: &protocol.ExecDetails{Spec: &protocol.ExecSpec{Env: map[string]string{}}},
	}
	for i := range 3000 {
		small.Exec.Spec.Env[fmt.Sprint("K", i)] = ""
		small.Exec.Spec.Command = append(small.Exec.Spec.Command, "")
	}
	b := &protocol.Batch{Events: []protocol.Event{small}}
	if size, is := jetstream.EventSize(&small), len(b.Encode()); size < is-100 {
		t.Fatalf("an event of %d bytes is estimated at %d", is, size)
	}
}
