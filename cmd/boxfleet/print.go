package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"golang.org/x/term"

	"github.com/boxfleet/boxfleet/protocol"
)

// json says whether output is for programs.
func (p *program) json() bool { return p.config.Output == outputJSON }

// show prints a value: as one line of JSON, or as text says.
func (p *program) show(value any, text func(w io.Writer)) error {
	if p.json() {
		return json.NewEncoder(p.stdout).Encode(value)
	}
	text(p.stdout)
	return nil
}

// table prints rows in columns.
func table(w io.Writer, rows ...[]any) {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			if i > 0 {
				fmt.Fprint(t, "\t")
			}
			fmt.Fprint(t, cell)
		}
		fmt.Fprintln(t)
	}
	t.Flush()
}

// ago is how long before now a time is, for people. Both are by the store's clock.
func ago(now, t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	d := now.Sub(t)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(0, int(d.Seconds())))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// progress shows on a terminal that something takes a while, until done is called. Elsewhere it is
// silent.
func (p *program) progress(what string) (done func()) {
	_, done = p.progressing(what)
	return done
}

// progressing is a progress whose text can be changed, by tell.
func (p *program) progressing(what string) (tell func(what string), done func()) {
	if !p.watched() {
		return func(string) {}, func() {}
	}
	var text atomic.Value
	text.Store(what)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		started, tick := time.Now(), time.NewTicker(120*time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-stop:
				fmt.Fprint(p.stderr, "\r\x1b[K")
				return
			case <-tick.C:
				fmt.Fprintf(p.stderr, "\r\x1b[K%c %s (%.0fs)", []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")[i%10], text.Load(), time.Since(started).Seconds())
			}
		}
	})
	var once sync.Once
	return func(what string) { text.Store(what) }, func() { once.Do(func() { close(stop); wg.Wait() }) }
}

// watched says whether stderr is a terminal.
func (p *program) watched() bool {
	f, ok := p.stderr.(interface{ Fd() uintptr })
	return ok && term.IsTerminal(int(f.Fd()))
}

// bar shows how much of something is done.
func bar(done, total int64) string {
	const width = 24
	full := int(width * done / max(total, 1))
	return fmt.Sprintf("[%s%s] %d%% of %s", strings.Repeat("█", full), strings.Repeat("░", width-full), 100*done/max(total, 1), protocol.Bytes(total))
}
