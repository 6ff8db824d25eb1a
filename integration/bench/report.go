package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"
)

// report is the result of a run.
type report struct {
	Version      int               `json:"version"` // version of this format
	Commit       string            `json:"commit"`
	Started      time.Time         `json:"started"`
	Seconds      float64           `json:"seconds"`
	Short        bool              `json:"short,omitempty"`
	Machine      machine           `json:"machine"`
	Measurements []*measurement    `json:"measurements"`
	Failed       map[string]string `json:"failed,omitempty"` // errors of failed phases, by phase
}

// ok reports whether every phase succeeded and every target was reached.
func (r *report) ok() bool {
	for _, m := range r.Measurements {
		if m.Missed {
			return false
		}
	}
	return len(r.Failed) == 0
}

func (r *report) print(w io.Writer) {
	m := r.Machine
	fmt.Fprintf(w, "\n%s\n%d cores (%s), %.1f GiB, Linux %s, engine %s (%s, cgroup v%s), %s, load before %.2f\n",
		r.Commit, m.Cores, m.CPU, float64(m.Memory)/(1<<30), m.Kernel, m.Engine, m.Storage, m.Cgroup, m.Go, m.Load)
	if r.Short {
		fmt.Fprintln(w, "few samples, and the machine may be shared: this shows that it works, not how fast it is")
	}
	if m.Load > 0.5 {
		fmt.Fprintln(w, "the machine was busy before the first sample: the figures do not represent Boxfleet")
	}
	fmt.Fprint(w, "\nbare: the engine without Boxfleet, unless the name says otherwise\n\n")
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tUNIT\tN\tP50\tP90\tBARE P50\tBARE P90\tRATIO\tTARGET\t")
	for _, m := range r.Measurements {
		fmt.Fprintln(table, strings.Join(m.row(), "\t"))
	}
	_ = table.Flush() // if this fails, the JSON file still has the figures
	for phase, why := range r.Failed {
		fmt.Fprintf(w, "\nphase %s failed: %s\n", phase, why)
	}
	fmt.Fprintf(w, "\n%.0f s; where more is better, nine of ten samples reach p90\n", r.Seconds)
}

// row returns the measurement's line of the table.
func (m *measurement) row() []string {
	row := []string{m.Name, m.Unit, fmt.Sprint(len(m.Ours)), figure(m.P50), figure(m.P90), "", "", "", m.goal(), ""}
	if len(m.Bare) > 0 {
		row[5], row[6], row[7] = figure(m.BareP50), figure(m.BareP90), figure(m.Ratio)
	}
	if m.Target.Of == ofP99 && len(m.Ours) > 0 {
		row[8] = figure(m.bounded()) + ": " + row[8]
	}
	switch {
	case m.Missed:
		row[9] = "MISSED"
	case m.Target != target{}:
		row[9] = "ok"
	}
	return row
}

func (r *report) save(path string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}
