package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// Finding is one problem, and what to do about it.
type Finding struct {
	Code     Code     `json:"code"`
	Severity Severity `json:"severity"`
	Subject  string   `json:"subject,omitempty"` // a worker, coordinator, stream or sandbox; empty: the fleet or client
	Problem  string   `json:"problem"`           // one sentence
	Do       string   `json:"do"`                // one sentence
}

// Report is the result of an examination.
type Report struct {
	Worst    Severity  `json:"worst"` // the highest severity of a finding; [OK] without findings
	You      You       `json:"you"`
	Fleet    *Fleet    `json:"fleet,omitempty"` // nil: no coordinator answers
	Findings []Finding `json:"findings"`        // the most severe first
}

// Fleet summarizes a fleet.
type Fleet struct {
	Deployment   string                     `json:"deployment"`
	AnsweredBy   protocol.CoordinatorInfo   `json:"answered_by"`
	Coordinators []protocol.CoordinatorInfo `json:"coordinators,omitempty"` // absent: not visible
	Server       string                     `json:"nats_server,omitempty"`  // version of the NATS server
	MaxPayload   protocol.Bytes             `json:"max_payload,omitempty"`  // size limit of a message on that server
	Durability   string                     `json:"durability"`             // what a stored write survives, in words
	Class        Class                      `json:"durability_class"`
	Stored       protocol.Bytes             `json:"stored"`               // size of one replica of all streams
	StoreMax     protocol.Bytes             `json:"store_max,omitempty"`  // limit of the account; 0: none
	Hosts        map[string]int             `json:"hosts"`                // number of hosts by state
	Workers      map[string]int             `json:"workers,omitempty"`    // number of workers by version
	Engines      map[string]int             `json:"engines,omitempty"`    // number of engines by version
	OwedCount    int                        `json:"owed_count,omitempty"` // number of late steps of sandboxes and execs
}

// Class says what an acknowledged write survives.
type Class string

// The classes of durability, from the safest.
const (
	Synced     Class = "synced"     // it is on disk: survives a power loss
	Replicated Class = "replicated" // survives the loss of a minority of servers
	Single     Class = "single"     // one server: survives the end of its process
	Nothing    Class = "none"       // nothing can be stored now
)

// Examine returns the report on a fleet.
func Examine(f Facts) Report {
	e := &examination{Facts: f}
	e.access()
	if f.Ping != nil {
		e.coordinators()
		e.storage()
		e.clocks()
		e.versions()
		e.hosts()
		e.owed()
	}
	slices.SortStableFunc(e.found, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(order[b.Severity], order[a.Severity]), cmp.Compare(rankOf(a.Code), rankOf(b.Code)),
			cmp.Compare(a.Subject, b.Subject))
	})
	r := Report{Worst: OK, You: f.You, Findings: e.found}
	if len(e.found) > 0 {
		r.Worst = e.found[0].Severity
	} else {
		r.Findings = []Finding{}
	}
	if f.Ping != nil {
		r.Fleet = e.fleet()
	}
	return r
}

// examination collects findings about facts.
type examination struct {
	Facts

	found []Finding
}

// find adds a finding.
func (e *examination) find(code Code, subject, format string, args ...any) {
	k := kinds[rankOf(code)]
	subject = shortened(subject)
	e.found = append(e.found, Finding{Code: code, Severity: k.Severity, Subject: subject,
		Problem: shortened(fmt.Sprintf(format, args...)), Do: shortened(strings.ReplaceAll(k.Do, "{subject}", subject))})
}

// shortened cuts a text that is too long for a sentence. Workers and coordinators write parts of a finding's texts.
func shortened(text string) string {
	const most = 1000 // bytes
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

func rankOf(code Code) int {
	return slices.IndexFunc(kinds, func(k Kind) bool { return k.Code == code })
}

func (e *examination) fleet() *Fleet {
	p := e.Ping
	f := &Fleet{Deployment: p.Deployment, Durability: p.Durability, Class: e.class(), Coordinators: e.Coordinators,
		AnsweredBy: protocol.CoordinatorInfo{Name: p.Coordinator, Version: p.Version},
		Hosts:      map[string]int{}, Workers: map[string]int{}, Engines: map[string]int{}}
	if p.Storage != nil {
		f.Stored, f.StoreMax = protocol.Bytes(p.Storage.Bytes), protocol.Bytes(p.Storage.MaxBytes)
	}
	if e.Checkup != nil {
		f.Server, f.MaxPayload, f.OwedCount = e.Checkup.Server, e.Checkup.MaxPayload, e.Checkup.OwedCount
	}
	for _, h := range e.Hosts {
		f.Hosts[string(h.State)]++
		if h.Build != "" {
			f.Workers[h.Build]++
		}
		if h.Engine != "" {
			f.Engines[h.Engine]++
		}
	}
	return f
}

// expiresSoon reports whether credentials expire within 3 days and have less than a third of their life left.
// Credentials that live for a day, and are replaced all the time, are therefore not reported every day. If issued is
// zero, it is unknown. If expires is zero, the credentials never expire.
func expiresSoon(issued, expires, now time.Time) bool {
	left := expires.Sub(now)
	return !expires.IsZero() && left < 3*24*time.Hour && (issued.IsZero() || left < expires.Sub(issued)/3)
}

// left says how long credentials are still valid.
func left(until, now time.Time) string {
	if !until.After(now) {
		return "expired at " + until.Format(time.RFC3339)
	}
	return "expire in " + until.Sub(now).Round(time.Minute).String()
}
